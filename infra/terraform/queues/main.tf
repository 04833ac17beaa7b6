# Queues for those who would rather have a message than a webhook. Each has one for what its readers gave up.

locals {
  tls_only = { for q in var.queues : q => jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TLSOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "sqs:*"
      Resource  = aws_sqs_queue.queues[q].arn
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  }) }
}

resource "aws_sqs_queue" "given_up" {
  for_each                          = var.queues
  name                              = "${var.name}-${each.key}-given-up"
  message_retention_seconds         = 1209600
  kms_master_key_id                 = var.key_arn
  kms_data_key_reuse_period_seconds = 300
}

resource "aws_sqs_queue" "queues" {
  for_each                          = var.queues
  name                              = "${var.name}-${each.key}"
  visibility_timeout_seconds        = 60
  receive_wait_time_seconds         = 20
  kms_master_key_id                 = var.key_arn
  kms_data_key_reuse_period_seconds = 300
  redrive_policy                    = jsonencode({ deadLetterTargetArn = aws_sqs_queue.given_up[each.key].arn, maxReceiveCount = 5 })
}

resource "aws_sqs_queue_policy" "queues" {
  for_each  = var.queues
  queue_url = aws_sqs_queue.queues[each.key].id
  policy    = local.tls_only[each.key]
}
