package embedded_test

import (
	"testing"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/pools/poolstest"
)

func TestPoolsConform(t *testing.T) {
	poolstest.Run(t, func(*testing.T) pools.Queue { return embedded.NewPools() })
}
