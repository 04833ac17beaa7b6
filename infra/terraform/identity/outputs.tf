output "key_arn" { value = aws_kms_key.this.arn }
output "role_arn" { value = aws_iam_role.services.arn }
output "analyst_policy_arn" { value = aws_iam_policy.analyst.arn }
