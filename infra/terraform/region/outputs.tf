output "values" {
  description = "Values of the chart: terraform output -raw values > values.yaml"
  value       = yamlencode(local.values)
}

output "bucket" { value = module.archive.bucket }
output "workgroup" { value = module.archive.workgroup }
output "queries" { value = module.archive.queries }
output "queue_urls" { value = module.queues.urls }
output "alarms_topic_arn" { value = module.observability.topic_arn }
output "remote_write_url" { value = module.observability.remote_write_url }
output "analyst_policy_arn" { value = module.identity.analyst_policy_arn }
output "collector_policy_arn" { value = module.observability.collector_policy_arn }
output "rings" { value = module.observability.rings }
