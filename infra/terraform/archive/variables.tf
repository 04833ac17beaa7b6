variable "name" {
  type        = string
  description = "Name of the installation."
}

variable "bucket" {
  type        = string
  description = "Name of the bucket."
}

variable "regions" {
  type        = list(string)
  description = "Regions whose audit-writers write into the bucket: the first part of its objects' names."
}

variable "key_arn" {
  type        = string
  description = "KMS key that encrypts objects and answers."
}

variable "retention_days" {
  type        = number
  default     = 2555
  description = "How long objects are kept, in days."

  validation {
    condition     = var.retention_days >= 365
    error_message = "retention_days must be at least 365: objects move to colder storage after 30 and 90 days, and stay there for 180 at least."
  }
}

variable "scan_limit_bytes" {
  type        = number
  default     = 1099511627776
  description = "What one query may read; a query that would read more is ended."
}

variable "compacted_until" {
  type        = string
  default     = "2000-01-01"
  description = "Last day that is read from compacted objects, in every region: what minutehand archive compact says at its end."

  validation {
    condition     = can(regex("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", var.compacted_until))
    error_message = "compacted_until must be a day, such as 2026-11-24."
  }
}
