output "topic_arn" { value = aws_sns_topic.alarms.arn }
output "remote_write_url" { value = "${aws_prometheus_workspace.this.prometheus_endpoint}api/v1/remote_write" }
output "collector_policy_arn" { value = aws_iam_policy.collector.arn }
output "rings" { value = length(aws_prometheus_alert_manager_definition.topic) > 0 }
