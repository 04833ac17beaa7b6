//go:build servers

package kafka_test

import (
	"testing"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/messaging/messagingtest"
)

func TestSenderConforms(t *testing.T) {
	messagingtest.Run(t, func(t *testing.T) *messagingtest.Broker {
		return cluster(t, []string{broker(t)}, servertest.Unique("target-"))
	})
}
