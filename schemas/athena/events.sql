-- The audit archive as a table. Terraform makes the Glue tables from this file, and the tests make Trino's from it: raw_events, below
-- audit/, as audit-writers put objects, and compacted_events, below compacted/, as minutehand archive compact does. view.sql joins them.
-- {table}, {folder}, {bucket} and {regions} are replaced: the bucket's name, and the regions that write to it, separated by commas.
--
-- A column that is added here is null in the objects of earlier releases. Nothing is ever renamed, retyped or removed. An event that
-- was published twice, across a crash, has two rows with one event_id: the named queries count it once.
CREATE EXTERNAL TABLE IF NOT EXISTS {table} (
  `event_id` string COMMENT 'follows from execution, attempt, transition and token, so the same event has the same id',
  `event_type` string COMMENT 'attempt, deferred, released, skipped or change',
  `event_at` timestamp COMMENT 'the clock of the process that published it',
  `tenant_id` string COMMENT 'the number of the tenant, in hexadecimal digits, or default',
  `job_id` string COMMENT '',
  `definition_id` string COMMENT 'schedule, target and policies in force',
  `execution_id` string COMMENT 'what a target gets as Webhook-Id',
  `attempt` bigint COMMENT 'from 1',
  `trigger` string COMMENT 'schedule, manual, redrive, replay, backfill or change',
  `nominal_at` timestamp COMMENT 'the instant of the schedule',
  `scheduled_for` timestamp COMMENT 'nominal_at and the jitter of the job',
  `due_at` timestamp COMMENT 'when this attempt was due',
  `outcome` string COMMENT 'succeeded, failed, timed_out, worker_lost, cancelled or skipped',
  `disposition` string COMMENT 'what became of the occurrence: fired, skipped_missed, skipped_paused, skipped_overlap or cancelled',
  `status_code` bigint COMMENT 'of the answer; 0 for none',
  `error` string COMMENT 'a sentence, without any value that was submitted',
  `fencing_token` string COMMENT 'of the call; the greater one, as text, was accepted later',
  `taken_at` timestamp COMMENT 'a worker took the entry',
  `published_at` timestamp COMMENT 'the fire went onto the log',
  `consumed_at` timestamp COMMENT 'an executor had it',
  `invoked_at` timestamp COMMENT 'the call began',
  `completed_at` timestamp COMMENT 'the attempt ended',
  `skipped_from` timestamp COMMENT 'first and last instant of a range of skipped occurrences',
  `skipped_to` timestamp COMMENT '',
  `skipped_count` bigint COMMENT 'how many occurrences the range has, at most 100000',
  `log_id` string COMMENT 'where the event was read: log, partition, offset and when it was appended',
  `log_partition` bigint COMMENT '',
  `log_offset` bigint COMMENT '',
  `appended_at` timestamp COMMENT '',
  `principal` string COMMENT 'who made the change, or asked for the execution; null if the schedule did',
  `role` string COMMENT '',
  `request_id` string COMMENT '',
  `source` string COMMENT 'the address that the request came from',
  `operation` string COMMENT 'of a change: the operation of the API',
  `object` string COMMENT 'of a change: what it was about, if not the job itself',
  `version` bigint COMMENT 'of a change: the version of the job after it',
  `target_kind` string COMMENT 'such as http_webhook',
  `target_host` string COMMENT 'host and port',
  `pool` string COMMENT 'not filled yet: the pool of workers',
  `worker` string COMMENT 'the executor that made the call; null where another one reported it',
  `request_bytes` bigint COMMENT 'size of the body that was sent; null for none',
  `response_bytes` bigint COMMENT 'size of the body that came back, as far as it was read',
  `reason` string COMMENT 'permanent, max_attempts or window: the attempt was the last, and a dead letter; missed, paused, overlap, cancelled: not fired; no_capacity: later; superseded: an update took the instant. Null for a replay that went to another target',
  `source_execution_id` string COMMENT 'the execution that a redrive or replay repeats, or that one follows; null for a replay that went to another target',
  `gave_way_to` string COMMENT 'the execution in progress because of which this one was skipped',
  `operation_id` string COMMENT 'the operation that asked for the execution',
  `deadline_at` timestamp COMMENT 'by when the occurrence was to succeed, as sla.finish_within of the job says; null for no such deadline',
  `tzdata_version` string COMMENT 'the time zone data by which a local time became nominal_at; null if no zone but UTC was asked',
  `utc_offset_seconds` bigint COMMENT 'the offset of that zone at nominal_at',
  `occurrence` timestamp COMMENT 'the instant of the occurrence that a redrive, replay or backfill stands for; null for any other execution',
  `start_deadline_at` timestamp COMMENT 'by when the occurrence was to be called, as sla.start_within of the job says; null for no such deadline'
)
PARTITIONED BY (`region` string, `dt` string, `hour` string)
STORED AS PARQUET
LOCATION 's3://{bucket}/{folder}/'
TBLPROPERTIES (
  'projection.enabled' = 'true',
  'projection.region.type' = 'enum',
  'projection.region.values' = '{regions}',
  'projection.dt.type' = 'date',
  'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2026-01-01,NOW+1DAYS',
  'projection.hour.type' = 'integer',
  'projection.hour.range' = '0,23',
  'projection.hour.digits' = '2',
  'storage.location.template' = 's3://{bucket}/{folder}/region=${region}/dt=${dt}/hour=${hour}'
)
