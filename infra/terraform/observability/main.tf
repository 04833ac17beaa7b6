# Where metrics go, what is rung for, and who hears it.

data "aws_caller_identity" "this" {}
data "aws_region" "this" {}

resource "aws_sns_topic" "alarms" {
  name              = "${var.name}-alarms"
  kms_master_key_id = var.key_arn
}

resource "aws_sns_topic_policy" "alarms" {
  arn = aws_sns_topic.alarms.arn
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Alarms"
      Effect    = "Allow"
      Principal = { Service = ["cloudwatch.amazonaws.com", "aps.amazonaws.com"] }
      Action    = ["sns:Publish", "sns:GetTopicAttributes"]
      Resource  = aws_sns_topic.alarms.arn
      Condition = { StringEquals = { "aws:SourceAccount" = data.aws_caller_identity.this.account_id } }
    }]
  })
}

resource "aws_cloudwatch_metric_alarm" "given_up" {
  for_each            = toset(var.given_up)
  alarm_name          = each.key
  alarm_description   = "Messages were given up by their readers."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = each.key }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

resource "aws_prometheus_workspace" "this" {
  alias = var.name
}

resource "aws_prometheus_rule_group_namespace" "rules" {
  for_each     = var.rules
  name         = each.key
  workspace_id = aws_prometheus_workspace.this.id
  data         = each.value
}

# What the rules ring for goes to the topic. moto has no alert manager.
resource "aws_prometheus_alert_manager_definition" "topic" {
  count        = var.alert_manager ? 1 : 0
  workspace_id = aws_prometheus_workspace.this.id
  definition = yamlencode({
    alertmanager_config = yamlencode({
      route = { receiver = "topic", group_by = ["alertname"], group_wait = "30s", group_interval = "5m", repeat_interval = "4h" }
      receivers = [{
        name = "topic"
        sns_configs = [{
          topic_arn  = aws_sns_topic.alarms.arn
          sigv4      = { region = data.aws_region.this.name }
          attributes = { severity = "{{ .CommonLabels.severity }}" }
        }]
      }]
    })
  })
}

# For the role of the collector that sends the metrics.
resource "aws_iam_policy" "collector" {
  name = "${var.name}-collector-${data.aws_region.this.name}"
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Sid = "Write", Effect = "Allow", Action = ["aps:RemoteWrite"], Resource = [aws_prometheus_workspace.this.arn] }]
  })
}
