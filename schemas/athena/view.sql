-- The table that queries ask: each day from where it lies now. {compacted} is the last day that is read from compacted objects; replacing
-- the view moves all readers at once, so none sees an event twice, or not at all.
CREATE OR REPLACE VIEW events AS
SELECT * FROM raw_events WHERE dt > '{compacted}'
UNION ALL
SELECT * FROM compacted_events WHERE dt <= '{compacted}'
