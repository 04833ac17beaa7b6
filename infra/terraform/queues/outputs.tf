output "arns" { value = [for q in aws_sqs_queue.queues : q.arn] }
output "urls" { value = { for name, q in aws_sqs_queue.queues : name => q.id } }
output "given_up" { value = [for q in aws_sqs_queue.given_up : q.name] }
