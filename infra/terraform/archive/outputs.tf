output "bucket" { value = aws_s3_bucket.archive.bucket }
output "bucket_arn" { value = aws_s3_bucket.archive.arn }
output "database" { value = aws_glue_catalog_database.archive.name }
output "workgroup" { value = aws_athena_workgroup.archive.name }
output "workgroup_arn" { value = aws_athena_workgroup.archive.arn }
output "queries" { value = keys(aws_athena_named_query.queries) }
