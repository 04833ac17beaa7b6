# The bucket of the audit archive, and what asks it: the tables, the view and the named queries of schemas/athena.

locals {
  schemas = "${path.module}/../../../schemas/athena"
  table   = file("${local.schemas}/events.sql")

  # The statement is the only source of the table. Each column is a line of its own, and each property too.
  columns    = regexall("(?m)^  `([a-z_]+)` ([a-z]+) COMMENT '([^']*)'", local.table)
  partitions = regexall("`([a-z_]+)` string", regex("PARTITIONED BY \\((.*)\\)", local.table)[0])
  properties = { for p in regexall("(?m)^  '([^']+)' = '([^']*)'", local.table) :
    p[0] => replace(replace(p[1], "{bucket}", var.bucket), "{regions}", join(",", var.regions))
  }
  # Both tables are made from the same statement, each over a folder of its own.
  folders = { raw_events = "audit", compacted_events = "compacted" }

  # The view names its columns, as Athena keeps it.
  names = concat([for c in local.columns : c[0]], [for p in local.partitions : p[0]])
  types = { string = "varchar", bigint = "bigint", timestamp = "timestamp(3)" }
  view = replace(replace(trimspace(regex("(?s)VIEW events AS\n(.*)$", file("${local.schemas}/view.sql"))[0]), "{compacted}", var.compacted_until),
  "*", join(", ", [for name in local.names : "\"${name}\""]))

  # A named query asks for the last seven days, unless its reader changes that.
  parameters = {
    "{from}" = "date_format(current_date - INTERVAL '6' DAY, '%Y-%m-%d')"
    "{to}"   = "date_format(current_date, '%Y-%m-%d')"
    "{job}"  = "'job_…'"
  }
  queries = { for f in fileset("${local.schemas}/queries", "*.sql") : trimsuffix(f, ".sql") =>
    replace(replace(replace(file("${local.schemas}/queries/${f}"), "{from}", local.parameters["{from}"]), "{to}", local.parameters["{to}"]), "{job}", local.parameters["{job}"])
  }
}

resource "aws_s3_bucket" "archive" {
  bucket = var.bucket
}

resource "aws_s3_bucket_versioning" "archive" {
  bucket = aws_s3_bucket.archive.id
  versioning_configuration { status = "Enabled" }
}

resource "aws_s3_bucket_ownership_controls" "archive" {
  bucket = aws_s3_bucket.archive.id
  rule { object_ownership = "BucketOwnerEnforced" }
}

resource "aws_s3_bucket_public_access_block" "archive" {
  bucket                  = aws_s3_bucket.archive.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "archive" {
  bucket = aws_s3_bucket.archive.id
  rule {
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = var.key_arn
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "archive" {
  bucket     = aws_s3_bucket.archive.id
  depends_on = [aws_s3_bucket_versioning.archive]

  rule {
    id     = "audit"
    status = "Enabled"
    filter { prefix = "audit/" }
    transition {
      days          = 30
      storage_class = "STANDARD_IA"
    }
    transition {
      days          = 90
      storage_class = "GLACIER_IR"
    }
    expiration { days = var.retention_days }
    noncurrent_version_expiration { noncurrent_days = 90 }
  }

  rule {
    id     = "compacted"
    status = "Enabled"
    filter { prefix = "compacted/" }
    transition {
      days          = 30
      storage_class = "STANDARD_IA"
    }
    transition {
      days          = 90
      storage_class = "GLACIER_IR"
    }
    expiration { days = var.retention_days }
    noncurrent_version_expiration { noncurrent_days = 90 }
  }

  # What compacted days consist of, for as long as they are there.
  rule {
    id     = "compaction"
    status = "Enabled"
    filter { prefix = "compaction/" }
    expiration { days = var.retention_days }
    noncurrent_version_expiration { noncurrent_days = 90 }
  }

  rule {
    id     = "answers"
    status = "Enabled"
    filter { prefix = "answers/" }
    expiration { days = 7 }
    noncurrent_version_expiration { noncurrent_days = 1 }
  }

  rule {
    id     = "uploads"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload { days_after_initiation = 3 }
  }
}

resource "aws_s3_bucket_policy" "archive" {
  bucket     = aws_s3_bucket.archive.id
  depends_on = [aws_s3_bucket_public_access_block.archive]
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TLSOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.archive.arn, "${aws_s3_bucket.archive.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}

resource "aws_glue_catalog_database" "archive" {
  name = replace(var.name, "-", "_")
}

resource "aws_glue_catalog_table" "events" {
  for_each      = local.folders
  name          = each.key
  database_name = aws_glue_catalog_database.archive.name
  table_type    = "EXTERNAL_TABLE"
  parameters = merge({ EXTERNAL = "TRUE", classification = "parquet" },
  { for name, value in local.properties : name => replace(value, "{folder}", each.value) })

  dynamic "partition_keys" {
    for_each = local.partitions
    content {
      name = partition_keys.value[0]
      type = "string"
    }
  }

  storage_descriptor {
    location      = "s3://${aws_s3_bucket.archive.bucket}/${each.value}/"
    input_format  = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"
    output_format = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
    ser_de_info {
      serialization_library = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
      parameters            = { "serialization.format" = "1" }
    }
    dynamic "columns" {
      for_each = local.columns
      content {
        name    = columns.value[0]
        type    = columns.value[1]
        comment = columns.value[2]
      }
    }
  }
}

# What queries ask. A view in Glue is one row, so readers move to newly compacted days all at once.
resource "aws_glue_catalog_table" "view" {
  name          = "events"
  database_name = aws_glue_catalog_database.archive.name
  depends_on    = [aws_glue_catalog_table.events]
  table_type    = "VIRTUAL_VIEW"
  parameters    = { presto_view = "true", comment = "Presto View" }

  view_expanded_text = "/* Presto View */"
  view_original_text = format("/* Presto View: %s */", base64encode(jsonencode({
    originalSql = local.view
    catalog     = "awsdatacatalog"
    schema      = aws_glue_catalog_database.archive.name
    columns = concat(
      [for c in local.columns : { name = c[0], type = local.types[c[1]] }],
    [for p in local.partitions : { name = p[0], type = "varchar" }])
  })))

  storage_descriptor {
    dynamic "columns" {
      for_each = concat(local.columns, [for p in local.partitions : [p[0], "string", ""]])
      content {
        name = columns.value[0]
        type = columns.value[1]
      }
    }
  }
}

resource "aws_athena_workgroup" "archive" {
  name          = "${var.name}-archive"
  force_destroy = true
  configuration {
    enforce_workgroup_configuration    = true
    publish_cloudwatch_metrics_enabled = true
    bytes_scanned_cutoff_per_query     = var.scan_limit_bytes
    result_configuration {
      output_location = "s3://${aws_s3_bucket.archive.bucket}/answers/"
      encryption_configuration {
        encryption_option = "SSE_KMS"
        kms_key_arn       = var.key_arn
      }
    }
  }
}

resource "aws_athena_named_query" "queries" {
  for_each    = local.queries
  name        = each.key
  description = trimprefix(split("\n", each.value)[0], "-- ")
  database    = aws_glue_catalog_database.archive.name
  workgroup   = aws_athena_workgroup.archive.name
  query       = each.value
}
