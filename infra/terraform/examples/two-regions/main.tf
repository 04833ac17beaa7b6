# Two regions, each with everything of its own. Name the issuers of your clusters, and your servers.

terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = { source = "hashicorp/aws", version = ">= 5.100, < 6" }
  }
}

variable "moto" {
  type        = string
  default     = null
  description = "Where a test's stand-in for AWS is; leave it out for AWS itself."
}

provider "aws" {
  alias                       = "eu"
  region                      = "eu-central-1"
  access_key                  = var.moto == null ? null : "test"
  secret_key                  = var.moto == null ? null : "test"
  skip_credentials_validation = var.moto != null
  skip_metadata_api_check     = var.moto != null
  skip_region_validation      = var.moto != null
  s3_use_path_style           = var.moto != null
  max_retries                 = var.moto == null ? null : 3
  dynamic "endpoints" {
    for_each = var.moto == null ? [] : [var.moto]
    content {
      amp        = endpoints.value
      athena     = endpoints.value
      cloudwatch = endpoints.value
      glue       = endpoints.value
      iam        = endpoints.value
      kms        = endpoints.value
      s3         = endpoints.value
      sns        = endpoints.value
      sqs        = endpoints.value
      sts        = endpoints.value
    }
  }
  default_tags { tags = { project = "minutehand" } }
}

provider "aws" {
  alias                       = "us"
  region                      = "us-east-1"
  access_key                  = var.moto == null ? null : "test"
  secret_key                  = var.moto == null ? null : "test"
  skip_credentials_validation = var.moto != null
  skip_metadata_api_check     = var.moto != null
  skip_region_validation      = var.moto != null
  s3_use_path_style           = var.moto != null
  max_retries                 = var.moto == null ? null : 3
  dynamic "endpoints" {
    for_each = var.moto == null ? [] : [var.moto]
    content {
      amp        = endpoints.value
      athena     = endpoints.value
      cloudwatch = endpoints.value
      glue       = endpoints.value
      iam        = endpoints.value
      kms        = endpoints.value
      s3         = endpoints.value
      sns        = endpoints.value
      sqs        = endpoints.value
      sts        = endpoints.value
    }
  }
  default_tags { tags = { project = "minutehand" } }
}

# Those of your clusters, if they have none yet.
resource "aws_iam_openid_connect_provider" "clusters" {
  provider       = aws.eu
  for_each       = toset(["eu", "us"])
  url            = "https://oidc.example.com/id/${each.key}"
  client_id_list = ["sts.amazonaws.com"]
}

module "eu" {
  source            = "../../region"
  providers         = { aws = aws.eu }
  oidc_provider_arn = aws_iam_openid_connect_provider.clusters["eu"].arn
  queues            = ["reports"]
  alert_manager     = var.moto == null
  values            = { api = { tokenSecret = { name = "api-token" } } }
  servers = {
    cassandra = { hosts = ["cassandra.eu.example.com:9042"], datacenter = "eu-central-1" }
    kafka     = { brokers = ["kafka.eu.example.com:9093"], tls = { enabled = true } }
    redis     = { addresses = ["redis.eu.example.com:6379"], cluster = true }
    zookeeper = { servers = ["zookeeper.eu.example.com:2181"] }
  }
}

module "us" {
  source            = "../../region"
  providers         = { aws = aws.us }
  oidc_provider_arn = aws_iam_openid_connect_provider.clusters["us"].arn
  queues            = ["reports"]
  alert_manager     = var.moto == null
  values            = { api = { tokenSecret = { name = "api-token" } } }
  servers = {
    cassandra = { hosts = ["cassandra.us.example.com:9042"], datacenter = "us-east-1" }
    kafka     = { brokers = ["kafka.us.example.com:9093"], tls = { enabled = true } }
    redis     = { addresses = ["redis.us.example.com:6379"], cluster = true }
    zookeeper = { servers = ["zookeeper.us.example.com:2181"] }
  }
}

output "values" {
  description = "The chart's values of each region."
  value       = { eu = module.eu.values, us = module.us.values }
}

output "queries" { value = module.eu.queries }
