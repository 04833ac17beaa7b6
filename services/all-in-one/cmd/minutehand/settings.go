package main

import (
	"github.com/minutehand/minutehand/libs/settings"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// runSettings is what an operator may set of the platform in one process. A new setting is one more field; the rest follows from its tags.
type runSettings struct {
	settings.File
	Data   string `default:".data" env:"MINUTEHAND_DATA" help:"Folder of the store and the archive." placeholder:"DIR"`
	Listen string `default:"127.0.0.1:8080" env:"MINUTEHAND_LISTEN" help:"Address of the API." placeholder:"HOST:PORT"`
	jobapi.Protection
	Private    *bool  `name:"allow-private-targets" negatable:"" env:"MINUTEHAND_ALLOW_PRIVATE_TARGETS" help:"Call loopback and private addresses; on by default only while the API listens on loopback and asks nobody for a credential."`
	Partitions int    `default:"0" env:"MINUTEHAND_PARTITIONS" help:"Partition count of a new store, fixed from then on; 0 means what the store has, or ${partitions}." placeholder:"N"`
	Memory     int    `default:"0" env:"MINUTEHAND_MEMORY" help:"Memory that the process may take, in MiB; 0 means half of what the machine or the control group has, 512 at least and 8192 at most." placeholder:"MIB"`
	Echo       bool   `env:"MINUTEHAND_ECHO" help:"Also run an echo target on 127.0.0.1:9000, or another port if that is taken, and print a curl line that uses it."`
	TZData     string `name:"tzdata" env:"MINUTEHAND_TZDATA" placeholder:"PATH" help:"Time zone data to plan by in place of that in this program: a folder such as /usr/share/zoneinfo, or a zoneinfo.zip."`
	LogLevel   string `default:"info" enum:"debug,info,warn,error" env:"MINUTEHAND_LOG_LEVEL" placeholder:"LEVEL" help:"Least level that is logged."`
}
