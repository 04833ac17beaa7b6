variable "name" {
  type        = string
  description = "Name of the installation."
}

variable "key_arn" {
  type        = string
  description = "KMS key that encrypts notifications."
}

variable "given_up" {
  type        = list(string)
  default     = []
  description = "Queues in which nothing should ever be."
}

variable "rules" {
  type        = map(string)
  default     = {}
  description = "Prometheus rule files, by name, such as those of infra/alerts."
}

variable "alert_manager" {
  type        = bool
  default     = true
  description = "Whether the managed Prometheus sends alerts to the topic itself."
}
