variable "name" {
  type        = string
  default     = "minutehand"
  description = "Name of the installation."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 20 small letters, digits and hyphens, and begin with a letter: the bucket's name begins with it."
  }
}

variable "oidc_provider_arn" {
  type        = string
  description = "Identity provider of the cluster (IAM OIDC provider)."

  validation {
    condition     = can(regex(":oidc-provider/.+", var.oidc_provider_arn))
    error_message = "oidc_provider_arn must be the ARN of an IAM OIDC provider: arn:aws:iam::ACCOUNT:oidc-provider/ISSUER."
  }
}

variable "namespace" {
  type        = string
  default     = "minutehand"
  description = "Namespace of the Helm release."
}

variable "release" {
  type        = string
  default     = "minutehand"
  description = "Name of the Helm release."
}

variable "servers" {
  type        = any
  description = "The chart's servers.cassandra, kafka, redis and zookeeper, as they go into its values."

  validation {
    condition     = alltrue([for s in ["cassandra", "kafka", "redis", "zookeeper"] : can(var.servers[s])]) && !can(var.servers.s3)
    error_message = "servers must have cassandra, kafka, redis and zookeeper, and no s3, which this module makes."
  }
}

variable "values" {
  type        = any
  default     = {}
  description = "Any other values of the chart, such as api."
}

variable "queues" {
  type        = set(string)
  default     = []
  description = "Queues to make for jobs."
}

variable "retention_days" {
  type        = number
  default     = 2555
  description = "How long the archive keeps objects."
}

variable "alert_manager" {
  type        = bool
  default     = true
  description = "Whether the managed Prometheus sends alerts to the topic itself."
}

variable "archive_compacted_until" {
  type        = string
  default     = "2000-01-01"
  description = "Last day of the archive that is read from compacted objects: what minutehand archive compact says at its end."
}
