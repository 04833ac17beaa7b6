module github.com/minutehand/minutehand/libs/sdk

go 1.26.0
