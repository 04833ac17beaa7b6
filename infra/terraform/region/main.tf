# One region: archive, identity, queues and observability, and the values that the chart needs to know of them.

data "aws_caller_identity" "this" {}
data "aws_region" "this" {}
data "aws_partition" "this" {}

locals {
  region     = data.aws_region.this.name
  bucket     = "${var.name}-archive-${data.aws_caller_identity.this.account_id}-${local.region}"
  bucket_arn = "arn:${data.aws_partition.this.partition}:s3:::${local.bucket}"
  alerts     = "${path.module}/../../alerts"

  values = merge(var.values, {
    servers = merge(var.servers, { s3 = { bucket = module.archive.bucket, region = local.region } })
    serviceAccount = {
      annotations = { "eks.amazonaws.com/role-arn" = module.identity.role_arn }
    }
  })
}

module "identity" {
  source            = "../identity"
  name              = var.name
  bucket_arn        = local.bucket_arn
  queue_arns        = module.queues.arns
  oidc_provider_arn = var.oidc_provider_arn
  namespace         = var.namespace
  release           = var.release
}

module "archive" {
  source         = "../archive"
  name           = var.name
  bucket         = local.bucket
  regions        = [local.region]
  key_arn        = module.identity.key_arn
  retention_days = var.retention_days

  compacted_until = var.archive_compacted_until
}

module "queues" {
  source  = "../queues"
  name    = var.name
  queues  = var.queues
  key_arn = module.identity.key_arn
}

module "observability" {
  source        = "../observability"
  name          = var.name
  key_arn       = module.identity.key_arn
  alert_manager = var.alert_manager
  given_up      = [for q in var.queues : "${var.name}-${q}-given-up"]
  rules         = { for f in fileset(local.alerts, "*.rules.yaml") : trimsuffix(f, ".rules.yaml") => file("${local.alerts}/${f}") }
}
