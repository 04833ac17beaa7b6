-- Records of the log that the archive does not have, as ranges of offsets: there should be none.
-- A range that begins before the first record of the days asked for is not looked at.
WITH records AS (
  SELECT DISTINCT log_id, log_partition, log_offset FROM events WHERE dt BETWEEN {from} AND {to}
), followed AS (
  SELECT log_id, log_partition, log_offset, lead(log_offset) OVER (PARTITION BY log_id, log_partition ORDER BY log_offset) AS next_offset
  FROM records
)
SELECT log_id, log_partition, log_offset + 1 AS first_offset, next_offset - 1 AS last_offset
FROM followed
WHERE next_offset > log_offset + 1
ORDER BY log_id, log_partition, first_offset
