package embedded_test

import (
	"testing"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/capacity/capacitytest"
)

func TestBoardConformance(t *testing.T) {
	capacitytest.Run(t, bubble.Test, func(*testing.T) capacity.Board { return embedded.NewBoard() })
}
