# What moto has no opinion on: what is refused, and what the chart is told.

mock_provider "aws" {
  mock_data "aws_caller_identity" { defaults = { account_id = "123456789012" } }
  mock_data "aws_region" { defaults = { name = "eu-central-1" } }
  mock_data "aws_partition" { defaults = { partition = "aws" } }
  mock_resource "aws_kms_key" { defaults = { arn = "arn:aws:kms:eu-central-1:123456789012:key/00000000-0000-0000-0000-000000000000" } }
  mock_resource "aws_s3_bucket" { defaults = { arn = "arn:aws:s3:::minutehand-archive" } }
  mock_resource "aws_sqs_queue" { defaults = { arn = "arn:aws:sqs:eu-central-1:123456789012:queue" } }
  mock_resource "aws_sns_topic" { defaults = { arn = "arn:aws:sns:eu-central-1:123456789012:topic" } }
  mock_resource "aws_iam_role" { defaults = { arn = "arn:aws:iam::123456789012:role/services" } }
}

variables {
  oidc_provider_arn = "arn:aws:iam::123456789012:oidc-provider/oidc.example.com/id/eu"
  servers = {
    cassandra = { hosts = ["cassandra:9042"] }
    kafka     = { brokers = ["kafka:9092"] }
    redis     = { addresses = ["redis:6379"] }
    zookeeper = { servers = ["zookeeper:2181"] }
  }
}

run "the_chart_is_told_bucket_region_and_role" {
  variables {
    queues = ["reports"]
    values = { partitions = 1024 }
  }
  assert {
    condition     = yamldecode(output.values).servers.s3.bucket == "minutehand-archive-123456789012-eu-central-1" && yamldecode(output.values).servers.s3.region == "eu-central-1"
    error_message = "bucket and region"
  }
  assert {
    condition     = yamldecode(output.values).serviceAccount.annotations["eks.amazonaws.com/role-arn"] == "arn:aws:iam::123456789012:role/services"
    error_message = "role"
  }
  assert {
    condition     = yamldecode(output.values).partitions == 1024 && yamldecode(output.values).servers.kafka.brokers == ["kafka:9092"]
    error_message = "what else was said"
  }
  assert {
    condition     = output.rings
    error_message = "alerts go to the topic"
  }
  assert {
    condition     = length(output.queries) >= 10
    error_message = "the named queries"
  }
}

run "a_name_that_no_bucket_can_have_is_refused" {
  command = plan
  variables { name = "Minute_hand" }
  expect_failures = [var.name]
}

run "an_arn_of_something_else_is_refused" {
  command = plan
  variables { oidc_provider_arn = "arn:aws:iam::123456789012:role/x" }
  expect_failures = [var.oidc_provider_arn]
}

run "servers_that_are_missing_are_refused" {
  command = plan
  variables { servers = { cassandra = { hosts = ["cassandra:9042"] } } }
  expect_failures = [var.servers]
}
