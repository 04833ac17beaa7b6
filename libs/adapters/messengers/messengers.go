// Package messengers names what opens the connections of tenants, for each kind of target.
package messengers

import (
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/sqs"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/messaging"
)

// All returns all kinds; every address is reached by dial.
func All(dial messaging.Dial) map[string]messaging.Open {
	return map[string]messaging.Open{job.TargetKafka: kafka.Senders(dial), job.TargetSQS: sqs.Senders(dial)}
}
