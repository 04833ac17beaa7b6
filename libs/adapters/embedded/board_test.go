package embedded_test

import (
	"testing"
	"testing/synctest"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/capacity/capacitytest"
)

func TestBoardConformance(t *testing.T) {
	capacitytest.Run(t, synctest.Test, func(*testing.T) capacity.Board { return embedded.NewBoard() })
}
