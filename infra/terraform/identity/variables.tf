variable "name" {
  type        = string
  description = "Name of the installation."
}

variable "bucket_arn" {
  type        = string
  description = "Bucket of the archive."
}

variable "queue_arns" {
  type        = list(string)
  default     = []
  description = "Queues that jobs may send to."
}

variable "oidc_provider_arn" {
  type        = string
  description = "Identity provider of the cluster (IAM OIDC provider)."
}

variable "namespace" {
  type        = string
  description = "Namespace of the release."
}

variable "release" {
  type        = string
  description = "Name of the Helm release; its service accounts follow from it."

  validation {
    condition     = length(var.release) <= 29
    error_message = "release must have at most 29 characters: the chart shortens the names of longer ones."
  }
}
