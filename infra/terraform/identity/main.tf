# Who may do what: the key of a region, a role for the services, and one for people who ask the archive.

data "aws_caller_identity" "this" {}
data "aws_region" "this" {}
data "aws_partition" "this" {}

locals {
  account  = data.aws_caller_identity.this.account_id
  region   = data.aws_region.this.name
  root     = "arn:${data.aws_partition.this.partition}:iam::${local.account}:root"
  issuer   = regex("oidc-provider/(.*)$", var.oidc_provider_arn)[0]
  accounts = [for suffix in ["", "-migration"] : "system:serviceaccount:${var.namespace}:${var.release}-minutehand${suffix}"]

  # The objects of an archive are put if absent, and read back; nothing ever replaces or deletes one. Compaction and minutehand doctor
  # have folders of their own.
  services = concat([
    { Sid = "Objects", Effect = "Allow", Action = ["s3:PutObject", "s3:GetObject"], Resource = [for folder in ["audit", "compacted", "compaction", "doctor"] : "${var.bucket_arn}/${folder}/*"] },
    { Sid = "Bucket", Effect = "Allow", Action = ["s3:ListBucket"], Resource = [var.bucket_arn] },
    { Sid = "Key", Effect = "Allow", Action = ["kms:GenerateDataKey", "kms:Decrypt"], Resource = [aws_kms_key.this.arn] },
    ], length(var.queue_arns) == 0 ? [] : [
    { Sid = "Queues", Effect = "Allow", Action = ["sqs:SendMessage", "sqs:GetQueueUrl"], Resource = var.queue_arns },
  ])
}

resource "aws_kms_key" "this" {
  description             = "${var.name} in ${local.region}"
  enable_key_rotation     = true
  rotation_period_in_days = 180
  deletion_window_in_days = 30
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Sid = "Account", Effect = "Allow", Principal = { AWS = local.root }, Action = "kms:*", Resource = "*" },
      {
        Sid       = "Alarms"
        Effect    = "Allow"
        Principal = { Service = ["cloudwatch.amazonaws.com", "aps.amazonaws.com", "logs.${local.region}.amazonaws.com"] }
        Action    = ["kms:Decrypt", "kms:GenerateDataKey*", "kms:Encrypt", "kms:ReEncrypt*", "kms:DescribeKey"]
        Resource  = "*"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
      },
    ]
  })
}

resource "aws_kms_alias" "this" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.this.key_id
}

resource "aws_iam_role" "services" {
  name = "${var.name}-services-${local.region}"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Federated = var.oidc_provider_arn }
      Action    = "sts:AssumeRoleWithWebIdentity"
      Condition = { StringEquals = { "${local.issuer}:aud" = "sts.amazonaws.com", "${local.issuer}:sub" = local.accounts } }
    }]
  })
}

resource "aws_iam_role_policy" "services" {
  name   = "services"
  role   = aws_iam_role.services.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.services })
}

# A policy for those who ask the archive; attach it to the roles of your analysts.
resource "aws_iam_policy" "analyst" {
  name = "${var.name}-analyst-${local.region}"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Queries"
        Effect   = "Allow"
        Action   = ["athena:StartQueryExecution", "athena:StopQueryExecution", "athena:GetQueryExecution", "athena:GetQueryResults", "athena:GetNamedQuery", "athena:ListNamedQueries", "athena:BatchGetNamedQuery", "athena:GetWorkGroup"]
        Resource = ["arn:${data.aws_partition.this.partition}:athena:${local.region}:${local.account}:workgroup/${var.name}-archive"]
      },
      {
        Sid    = "Table"
        Effect = "Allow"
        Action = ["glue:GetDatabase", "glue:GetTable", "glue:GetTables", "glue:GetPartitions"]
        Resource = [for of in concat(["catalog", "database/${replace(var.name, "-", "_")}"], [for t in ["events", "raw_events", "compacted_events"] : "table/${replace(var.name, "-", "_")}/${t}"]) :
        "arn:${data.aws_partition.this.partition}:glue:${local.region}:${local.account}:${of}"]
      },
      { Sid = "Read", Effect = "Allow", Action = ["s3:GetObject"], Resource = [for folder in ["audit", "compacted", "compaction", "answers"] : "${var.bucket_arn}/${folder}/*"] },
      { Sid = "Answers", Effect = "Allow", Action = ["s3:PutObject"], Resource = ["${var.bucket_arn}/answers/*"] },
      { Sid = "Bucket", Effect = "Allow", Action = ["s3:ListBucket", "s3:GetBucketLocation"], Resource = [var.bucket_arn] },
      { Sid = "Key", Effect = "Allow", Action = ["kms:Decrypt", "kms:GenerateDataKey"], Resource = [aws_kms_key.this.arn] },
    ]
  })
}
