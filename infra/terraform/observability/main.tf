# Where metrics go, what is rung for, and who hears it.

data "aws_caller_identity" "this" {}

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
      Action    = "sns:Publish"
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
