package schedule_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// faultsOf returns the faults of a schedule that must not compile.
func faultsOf(t *testing.T, s job.Schedule) []*schedule.Error {
	t.Helper()
	_, err := schedule.Compile(s, "job-1")
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	var faults []*schedule.Error
	for _, err := range list {
		var fault *schedule.Error
		if !errors.As(err, &fault) {
			t.Fatalf("Compile(%.80v): %v, want an *Error", s, err)
		}
		faults = append(faults, fault)
	}
	return faults
}

func TestWrongExpressionsAreRefusedQuicklyAndByFieldName(t *testing.T) {
	tests := []struct{ expr, mention string }{
		{"", "5 fields"},
		{" \t ", "5 fields"},
		{"* * * *", "5 fields"},
		{"* * * * * * * *", "5 fields"},
		{strings.Repeat("*", 2<<20), "256 bytes"},
		{strings.Repeat(" ", 252) + "* * * * *", "256 bytes"},
		{"*\u00a0* * * *", "ASCII"},
		{"* * * * \u0661", "ASCII"},
		{"* * * *\n*", "ASCII"},
		{"* * * * *\x00", "ASCII"},
		{"* * * * *\x7f", "ASCII"},
		{"60 * * * *", "minute"},
		{"* 24 * * *", "hour"},
		{"* * 0 * *", "day of month"},
		{"* * 32 * *", "day of month"},
		{"* * * 0 *", "month"},
		{"* * * 13 *", "month"},
		{"* * * * 8", "day of week"},
		{"60 * * * * *", "second"},
		{"0 0 0 1 1 ? 1969", "year"},
		{"0 0 0 1 1 ? 2200", "year"},
		{"0 0 0 1 1 ? 2030-2020", "year"},
		{"*/0 * * * *", "minute"},
		{"*/61 * * * *", "minute"},
		{"*/ * * * *", "minute"},
		{"*/5/5 * * * *", "minute"},
		{"/5 * * * *", "minute"},
		{"1,,2 * * * *", "minute"},
		{",1 * * * *", "minute"},
		{"1, * * * *", "minute"},
		{"5- * * * *", "minute"},
		{"-5 * * * *", "minute"},
		{"1-2-3 * * * *", "minute"},
		{"+5 * * * *", "minute"},
		{"5.0 * * * *", "minute"},
		{"** * * * *", "minute"},
		{"*5 * * * *", "minute"},
		{"*-5 * * * *", "minute"},
		{"99999999999999999999 * * * *", "minute"},
		{"*/18446744073709551617 * * * *", "minute"},
		{"? * * * *", "minute"},
		{"MON * * * *", "minute"},
		{"15W * * * *", "minute"},
		{"L * * * *", "minute"},
		{"* * ?,1 * *", "day of month"},
		{"* * */W * *", "day of month"},
		{"* * W * *", "day of month"},
		{"* * 32W * *", "day of month"},
		{"* * 1,15W * *", "day of month"},
		{"* * LW,1 * *", "day of month"},
		{"* * 1-15W * *", "day of month"},
		{"* * L-31 * *", "day of month"},
		{"* * L-0 * *", "day of month"},
		{"* * L- * *", "day of month"},
		{"* * L-3W * *", "day of month"},
		{"* * LL * *", "day of month"},
		{"* * L/2 * *", "day of month"},
		{"* * 5L * *", "day of month"},
		{"* * * MONDAY *", "month"},
		{"* * * JANU *", "month"},
		{"* * * ANF *", "month"},
		{"* * * MON *", "month"},
		{"* * * * JAN", "day of week"},
		{"* * * * L", "day of week"},
		{"* * * * 15W", "day of week"},
		{"* * * * #6", "day of week"},
		{"* * * * 5#6", "day of week"},
		{"* * * * 5#0", "day of week"},
		{"* * * * 5#", "day of week"},
		{"* * * * 5#1#2", "day of week"},
		{"* * * * 8#1", "day of week"},
		{"* * * * 1-5L", "day of week"},
		{"* * * * UNM", "day of week"},
		{"0 0 0 1 1 ? H", "year"},
		{"0 0 0 1 1 ? 2026,h", "year"},
		{"0 0 0 1 1 ? H(2026-2030)/2", "year"},
		{"H( * * * *", "minute"},
		{"H() * * * *", "minute"},
		{"H(5) * * * *", "minute"},
		{"H(0-29 * * * *", "minute"},
		{"H0-29) * * * *", "minute"},
		{"H(0-29)) * * * *", "minute"},
		{"H(0-29)5 * * * *", "minute"},
		{"H(0-60) * * * *", "minute"},
		{"H(0,29) * * * *", "minute"},
		{"H(*) * * * *", "minute"},
		{"H(H-5) * * * *", "minute"},
		{"H(0-9/2) * * * *", "minute"},
		{"HH * * * *", "minute"},
		{"H15 * * * *", "minute"},
		{"H-5 * * * *", "minute"},
		{"5-H * * * *", "minute"},
		{"H/ * * * *", "minute"},
		{"H/0 * * * *", "minute"},
		{"H/H * * * *", "minute"},
		{"*/H * * * *", "minute"},
		{"H/61 * * * *", "minute"},
		{"H(0-29)/31 * * * *", "minute"},
		{"H(0-29)/5/5 * * * *", "minute"},
		{"* H(0-24) * * *", "hour"},
		{"* * H/29 * *", "day of month"},
		{"* * HW * *", "day of month"},
		{"* * H,15W * *", "day of month"},
		{"* * L-H * *", "day of month"},
		{"* * * H(0-6) *", "month"},
		{"* * * H/13 *", "month"},
		{"* * * * HL", "day of week"},
		{"* * * * H#2", "day of week"},
		{"* * * * H(0-7)/8", "day of week"},
		{"@", "macros"},
		{"@dailyy", "macros"},
		{"@daily 5", "macros"},
		{"@every 5m", "type interval"},
		{"@reboot", "type interval"},
		{"TZ=UTC * * * * *", "timezone"},
		{"cron_tz=Europe/Berlin * * * * *", "timezone"},

		{"0 0 30 2 *", "exists"},
		{"0 0 30,31 FEB ?", "exists"},
		{"0 0 31 4,6,9,11 *", "exists"},
		{"0 0 0 29 2 ? 2001-2003", "exists"},
		{"0 0 0 29 2 ? 2100", "exists"},
		{"0 0 31W 4 *", "exists"},
		{"0 0 L-29 2 *", "exists"},
		{"0 0 0 ? 2 MON#5 2023", "exists"},
		{"0 0 */31 2 MON#2", "exists"}, // the field that begins with * still restricts: no 1st is a second Monday
	}
	for _, test := range tests {
		started := time.Now()
		faults := faultsOf(t, cron(test.expr, "Europe/London"))
		if spent := time.Since(started); spent > 250*time.Millisecond { // without -race it is microseconds
			t.Errorf("%.40q took %v", test.expr, spent)
		}
		fault := faults[0]
		if len(faults) != 1 || fault.Field != "cron_expr" || fault.Code != schedule.CodeInvalid || !strings.Contains(fault.Message, test.mention) {
			t.Errorf("%.40q: %v, want one fault that mentions %q", test.expr, faults, test.mention)
		}
	}
}

func TestEachFieldReportsItsFault(t *testing.T) {
	s := cron("60 24 * * 5-", "Nowhere/Land")
	s.DST = job.DST{Gap: "leap", Fold: "none"}
	s.Jitter = -1
	s.MaxOccurrences = -1
	var fields []string
	for _, fault := range faultsOf(t, s) {
		fields = append(fields, fault.Field)
	}
	if got, want := strings.Join(fields, " "), "timezone max_occurrences jitter dst/gap dst/fold cron_expr cron_expr cron_expr"; got != want {
		t.Errorf("faults in %s, want %s", got, want)
	}
}

func TestMessagesNeverRepeatWhatWasSubmitted(t *testing.T) {
	for _, expr := range []string{"ZQX * * * *", "* * 77 * *", "@zqx", "* * * * 4#77", "*/77 * * * *", "TZ=ZQX * * * * *", "\u00a0ZQX"} {
		s := cron(expr, "ZQX/77")
		s.DST.Gap, s.DST.Fold, s.Type = "ZQX", "zqx", job.ScheduleCron
		_, err := schedule.Compile(s, "ZQX")
		if text := strings.ToUpper(err.Error()); strings.Contains(text, "ZQX") || strings.Contains(text, "77") {
			t.Errorf("%q: %v", expr, err)
		}
	}
}

func TestAGapCanLeaveNothing(t *testing.T) {
	s := cron("0 30 2 10 3 ? 2024", "America/New_York")
	s.DST.Gap = job.GapSkip
	if faults := faultsOf(t, s); faults[0].Field != "cron_expr" || !strings.Contains(faults[0].Message, "exists") {
		t.Errorf("faults %v", faults)
	}
	s.DST.Gap = job.GapNextValid
	compile(t, s)
}

// A day is printed as its date, in UTC; each case lists the first occurrences from the start of 2024.
func TestExpressionsMeanWhatTheySay(t *testing.T) {
	tests := []struct{ expr, layout, want string }{
		{"0 0 L * *", "0102", "0131 0229 0331 0430 0531"},
		{"0 0 L-3 * *", "0102", "0128 0226 0328 0427 0528"},
		{"0 0 L-30 * *", "0102", "0101 0301 0501 0701 0801"},
		{"0 0 1,L * *", "0102", "0101 0131 0201 0229 0301"},
		{"0 0 LW * *", "0102", "0131 0229 0329 0430 0531"},
		{"0 0 15w * *", "0102", "0115 0215 0315 0415 0515"},
		{"0 0 1W * *", "0102", "0101 0201 0301 0401 0501 0603 0701 0801 0902"},
		{"0 0 30W * *", "0102", "0130 0329 0430 0530 0628"},
		{"0 0 31W * *", "0102", "0131 0329 0531 0731 0830"},
		{"0 0 * * FRI#3", "0102", "0119 0216 0315 0419 0517"},
		{"0 0 ? * 5#5", "0102", "0329 0531 0830 1129 0131"},
		{"0 0 ? * fril", "0102", "0126 0223 0329 0426 0531"},
		{"0 0 ? * MON#1,MON#3", "0102", "0101 0115 0205 0219 0304"},
		{"0 0 ? * 0", "0102", "0107 0114 0121"},
		{"0 0 ? * 7", "0102", "0107 0114 0121"},
		{"0 0 ? * 7-1", "0102", "0101 0107 0108"},
		{"0 0 ? * 6-7", "0102", "0106 0107 0113"},
		{"0 0 ? * 7-7", "0102", "0107 0114 0121"},
		{"0 0 ? * 0-7", "0102", "0101 0102 0103 0104 0105 0106 0107 0108"},
		{"0 0 ? * FRI-MON", "0102", "0101 0105 0106 0107 0108 0112"},
		{"0 0 ? * FRI-MON/2", "0102", "0105 0107 0112"},
		{"0 0 ? * 5/1", "0102", "0105 0106 0112"},
		{"0 0 1 NOV-FEB *", "0102", "0101 0201 1101 1201 0101"},
		{"0 0 30-2 * *", "0102", "0101 0102 0130 0131 0201"},
		{"0 22-2 * * *", "15", "00 01 02 22 23 00"},
		{"0 22-2/2 * * *", "15", "00 02 22 00"},
		{"0 5/8 * * *", "15", "05 13 21 05"},
		{"0 1,13 * * *", "15", "01 13 01"},
		{"55-5/5 0 * * *", "04", "00 05 55 00"},
		{"0 0 13 * FRI", "0102", "0105 0112 0113 0119 0126 0202"},
		{"0 0 */2 * MON", "0102", "0101 0115 0129 0205 0219"},
		{"0 0 13 * */5", "0102", "0913 1013 1213 0413"}, // Friday or Sunday, and the 13th
		{"0 0 ? * MON", "0102", "0101 0108 0115"},
		{"0 0 13 * ?", "0102", "0113 0213 0313"},
		{"0 0 *,5 * MON", "0102", "0101 0108 0115"},
		{"0 0 29 2 *", "2006", "2024 2028 2032 2036"},
		{"0 0 29 2 */7", "2006", "2032 2060 2088 2128"}, // 29 February on a Sunday; 2100 is no leap year
		{"0 0 */28 2 1#5", "2006", "2044 2072 2112 2140"},
		{"30 1 1 1 1 ?", "0102 150405", "0101 010130"},
		{"*/20 0 0 1 1 ? 2030/2", "2006 05", "2030 00,2030 20,2030 40,2032 00"},
		{" \t0 0 1 1 *\t ", "2006", "2024 2025"},
		{"00 007 1 1 *", "15", "07 07"},
		{strings.Repeat("0,", 120) + "0 0 1 1 *", "2006", "2024 2025"},
		{"@yearly", "2006-01-02", "2024-01-01 2025-01-01"},
		{"@Annually", "2006-01-02", "2024-01-01 2025-01-01"},
		{"@monthly", "01-02", "01-01 02-01"},
		{"@weekly", "01-02", "01-07 01-14"},
		{"@daily", "01-02", "01-01 01-02"},
		{"@midnight", "01-02", "01-01 01-02"},
		{"@hourly", "15:04", "00:00 01:00"},
	}
	for _, test := range tests {
		separator := " "
		if strings.Contains(test.want, ",") {
			separator = ","
		} else if strings.Contains(test.layout, " ") {
			separator = "|"
		}
		want := strings.Split(test.want, separator)
		var got []string
		for _, o := range compile(t, cron(test.expr, "")).Preview(utc(t, "2023-12-31T23:59:59Z"), len(want)) {
			got = append(got, o.At.Format(test.layout))
		}
		if strings.Join(got, separator) != test.want {
			t.Errorf("%q: %v, want %v", test.expr, got, want)
		}
	}
}
