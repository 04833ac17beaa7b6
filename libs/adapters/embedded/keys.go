package embedded

import (
	"encoding/binary"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Each table has a prefix byte; numbers are big-endian, so that byte order is the order needed.
const (
	tableMeta       = 'm' // name
	tableJob        = 'j' // job id
	tableDefinition = 'd' // job id, definition id
	tableListing    = 't' // tenant 0 job id
	tableClaim      = 'k' // tenant 0 key
	tablePending    = 'p' // partition, minute, due, execution id 0, attempt, definition id 0, cell
	tableProgress   = 'w' // partition
	tableHistory    = 'h' // day, job id 0, ^nominal, execution id 0, attempt, event id
	tableDeadLetter = 'x' // ^day, tenant 0, execution id
	tableRedriven   = 'y' // as tableDeadLetter
	tableLog        = 'l' // topic 0 partition, offset
	tableOffset     = 'o' // topic 0 group 0 partition
	tableStarted    = 'e' // execution id 0 attempt
	tableHanded     = 'f' // number
	tableRuns       = 'r' // job id
	tableJobKey     = 'n' // tenant 0 key
	tableList       = 'i' // list 0 name
	tableVersion    = 'v' // as tableList
	tableExpiry     = 'z' // when, the key of the row that expires then
)

// The cells of a pending row, adjacent so that one scan meets them together and each can be written blindly.
const (
	cellEntry    = 0
	cellDecision = 1
	cellDone     = 2
	cellDeferred = 3
)

func metaKey(name string) []byte { return append([]byte{tableMeta}, name...) }

func jobKey(jobID string) []byte { return append([]byte{tableJob}, jobID...) }

func definitionKey(jobID, definitionID string) []byte {
	return append(text([]byte{tableDefinition}, jobID), definitionID...)
}

func listingKey(tenant job.Tenant, jobID string) []byte {
	return append(text(append(make([]byte, 0, shortKeyRoom), tableListing), tenant.String()), jobID...)
}

func claimKey(tenant job.Tenant, key string) []byte {
	return append(text([]byte{tableClaim}, tenant.String()), key...)
}

func progressKey(partition int) []byte {
	return binary.BigEndian.AppendUint32([]byte{tableProgress}, uint32(partition))
}

// Room for most keys; longer ones grow.
const (
	shortKeyRoom   = 64
	rowKeyRoom     = 112
	historyKeyRoom = 176
)

func bucketKey(partition int, minute int64) []byte {
	k := append(make([]byte, 0, rowKeyRoom), tablePending)
	k = binary.BigEndian.AppendUint32(k, uint32(partition))
	return binary.BigEndian.AppendUint64(k, uint64(minute))
}

// rowKey returns the prefix of a pending row's cells.
func rowKey(l job.Locator) []byte {
	k := bucketKey(l.Partition, l.Minute)
	k = instant(k, l.DueAt)
	k = text(k, l.ExecutionID)
	k = binary.BigEndian.AppendUint32(k, uint32(l.Attempt))
	return text(k, l.DefinitionID)
}

func cell(row []byte, kind byte) []byte { return append(row[:len(row):len(row)], kind) }

func day(t time.Time) uint32 { return uint32(t.UnixMilli() / 86_400_000) }

func historyDayKey(d uint32, jobID string) []byte {
	k := append(make([]byte, 0, historyKeyRoom), tableHistory)
	return text(binary.BigEndian.AppendUint32(k, d), jobID)
}

// historyKey orders a job's events of a day newest instant first, an execution's by attempt.
func historyKey(jobID string, nominalAt time.Time, executionID string, attempt int, eventID string) []byte {
	k := historyExecutionKey(jobID, nominalAt, executionID)
	k = binary.BigEndian.AppendUint32(k, uint32(attempt))
	return append(k, eventID...)
}

func historyExecutionKey(jobID string, nominalAt time.Time, executionID string) []byte {
	k := historyDayKey(day(nominalAt), jobID)
	k = binary.BigEndian.AppendUint64(k, ^uint64(nominalAt.UnixMilli()))
	return text(k, executionID)
}

func deadLetterKey(d uint32, tenant job.Tenant, executionID string) []byte {
	k := binary.BigEndian.AppendUint32([]byte{tableDeadLetter}, ^d)
	return append(text(k, tenant.String()), executionID...)
}

func logPartitionKey(topic string, partition int) []byte {
	return binary.BigEndian.AppendUint32(text([]byte{tableLog}, topic), uint32(partition))
}

func logKey(topic string, partition int, offset int64) []byte {
	return binary.BigEndian.AppendUint64(logPartitionKey(topic, partition), uint64(offset))
}

func offsetKey(topic, group string, partition int) []byte {
	return binary.BigEndian.AppendUint32(text(text([]byte{tableOffset}, topic), group), uint32(partition))
}

func startedKey(executionID string, attempt int) []byte {
	k := append(make([]byte, 0, shortKeyRoom), tableStarted)
	return binary.BigEndian.AppendUint32(text(k, executionID), uint32(attempt))
}

func handedKey(number int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{tableHanded}, uint64(number))
}

// text appends s and a zero byte; no identifier contains one (they are checked at the edge).
func text(k []byte, s string) []byte { return append(append(k, s...), 0) }

func instant(k []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(k, uint64(t.UnixMilli()))
}

// after returns the smallest key after every key that begins with prefix.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
