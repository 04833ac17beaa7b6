variable "name" {
  type        = string
  description = "Name of the installation."
}

variable "queues" {
  type        = set(string)
  description = "Names of the queues, after the installation's."
}

variable "key_arn" {
  type        = string
  description = "KMS key that encrypts messages."
}
