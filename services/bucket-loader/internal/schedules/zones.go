package schedules

import (
	"context"
	"errors"
	"fmt"

	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/schedule"
)

// zoneSetting holds the release of the time zone data by which the schedules are planned: that of the first process that looked, and later
// that of a process whose pass found no entry where other data puts it.
const zoneSetting = "time-zone-data"

// checkZones says if the schedules were planned by other time zone data than this process has. Data that names no release is taken for the
// same.
func (a *Audit) checkZones(ctx context.Context) error {
	here := schedule.TZDataVersion()
	if here == schedule.UnknownRelease {
		return nil
	}
	value, err := a.Settings.Setting(ctx, zoneSetting)
	if err == nil && value == nil {
		value = []byte(here)
		if err = a.Settings.SwapSetting(ctx, zoneSetting, nil, value); errors.Is(err, jobstore.ErrConflict) {
			value, err = a.Settings.Setting(ctx, zoneSetting)
		}
	}
	if err != nil {
		return fmt.Errorf("read by which time zone data the schedules are planned: %w", err)
	}
	a.differs(string(value))
	return nil
}

// someOther stands for other data of which nobody noted the release.
const someOther = "other"

// differs tells once of other data by which the schedules are planned; planned may be this process's own.
func (a *Audit) differs(planned string) {
	here := schedule.TZDataVersion()
	a.Metrics.otherZones.Reset()
	if planned == here && a.mixed {
		planned = someOther
	}
	if planned == here {
		a.plannedBy = ""
		return
	}
	a.Metrics.otherZones.WithLabelValues(planned).Set(1)
	if a.plannedBy != planned {
		a.plannedBy = planned
		a.Logger.Warn("jobs were planned by other time zone data than this process has; minutehand tzdata diff lists those that it moves, and "+
			"minutehand tzdata apply plans them (runbooks/time-zone-data.md)", "planned_by", planned, "tzdata", here)
	}
}

// settleZones takes the data of this process for that by which the schedules are planned, if a pass that had no other found each in its place.
// If it found some elsewhere, it says so, whatever is noted: a process with other data may have planned them since.
func (a *Audit) settleZones(ctx context.Context, p *progress) error {
	here := schedule.TZDataVersion()
	if p.Zones != here || here == schedule.UnknownRelease {
		return nil
	}
	value, err := a.Settings.Setting(ctx, zoneSetting)
	if err != nil {
		return fmt.Errorf("read by which time zone data the schedules are planned: %w", err)
	}
	a.mixed = p.Elsewhere > 0
	switch {
	case a.mixed:
		a.Logger.Warn("schedules wait where other time zone data has put them; minutehand tzdata apply plans them (runbooks/time-zone-data.md)",
			"schedules", p.Elsewhere, "planned_by", string(value), "tzdata", here)
		a.differs(string(value))
	case string(value) == here:
		a.differs(here)
	case p.Unsure:
	default:
		err := a.Settings.SwapSetting(ctx, zoneSetting, value, []byte(here))
		if errors.Is(err, jobstore.ErrConflict) { // another process noted its own
			return nil
		}
		if err != nil {
			return fmt.Errorf("note by which time zone data the schedules are planned: %w", err)
		}
		a.Logger.Info("all schedules are planned by the time zone data of this process", "tzdata", here)
		a.differs(here)
	}
	return nil
}
