output "topic_arn" { value = aws_sns_topic.alarms.arn }
output "remote_write_url" { value = "${aws_prometheus_workspace.this.prometheus_endpoint}api/v1/remote_write" }
