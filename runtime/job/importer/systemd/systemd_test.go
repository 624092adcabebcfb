package systemd

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/cronexpr"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer/importertest"
)

// unitsByCase are the units that are named, by directory of testdata.
var unitsByCase = map[string][]string{
	"web": {"web.service"}, "app": {"app.service", "db.service"}, "stages": {"migrate.service", "store.service", "web.service", "report.service"},
	"oneshot": {"cleanup.service"}, "timer": {"backup.timer"}, "interval": {"poll.timer", "poll.service"},
	"template": {"worker@mail-out.service"}, "dropin": {"api.service"}, "envfile": {"daemon.service"}, "forking": {"old.service"},
}

// TestUnits converts the units of each directory of testdata, and compares job and warnings with its golden files.
func TestUnits(t *testing.T) {
	cases, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range cases {
		if entry.Name() == "fuzz" {
			continue
		}
		t.Run(entry.Name(), func(t *testing.T) {
			o := Options{Dirs: []string{filepath.Join("testdata", entry.Name())}, Units: unitsByCase[entry.Name()]}
			if entry.Name() == "app" {
				o.Driver, o.JobName = "exec", "shop"
			}
			result, err := Convert(o)
			if err != nil {
				t.Fatal(err)
			}
			importertest.CheckJob(t, result.Job)
			importertest.CompareGolden(t, filepath.Join("testdata", entry.Name()), result)
		})
	}
	if len(cases) < len(unitsByCase) {
		t.Errorf("%d directories, want %d", len(cases), len(unitsByCase))
	}
}

func TestCronOf(t *testing.T) {
	for _, c := range []struct{ calendar, cron, zone string }{
		{"daily", "0 0 * * *", ""},
		{"hourly", "0 * * * *", ""},
		{"weekly", "0 0 * * 1", ""},
		{"quarterly", "0 0 1 1,4,7,10 *", ""},
		{"*:0/15", "*/15 * * * *", ""},
		{"*-*-* 00/6:05:00", "5 */6 * * *", ""},
		{"Mon..Fri 08:30", "30 8 * * 1-5", ""},
		{"Sat,Sun *-*-* 10:00", "0 10 * * 0,6", ""},
		{"Fri..Mon 10:00", "0 10 * * 0,1,5,6", ""},
		{"monday,wednesday 10:00", "0 10 * * 1,3", ""},
		{"*-*-01,15 12:00 UTC", "0 12 1,15 * *", "UTC"},
		{"*-02~01 03:00", "0 3 L 2 *", ""},
		{"2027-01-01 00:00:30", "30 0 0 1 1 * 2027", ""},
		{"*:*:10/20", "10-59/20 * * * * * *", ""},
		{"*-10..12-05 1..3:00", "0 1-3 5 10-12 *", ""},
		{"03-05", "0 0 5 3 *", ""},
	} {
		cron, zone, err := cronOf(c.calendar)
		if cron != c.cron || zone != c.zone || err != nil {
			t.Errorf("%s: got %q %q %v, want %q %q", c.calendar, cron, zone, err, c.cron, c.zone)
		}
		if _, err := cronexpr.Parse(cron); err != nil {
			t.Errorf("%s: %v", c.calendar, err)
		}
	}
	for _, calendar := range []string{"", "Mon *-*-13 00:00", "25:00", "*:60", "sometimes", "*-*~03 00:00", "Mon..Xyz 10:00", "12:00 12:00", "*-*-* 1:2:3:4", "12:00 Mars/Base"} {
		if cron, zone, err := cronOf(calendar); err == nil {
			t.Errorf("%q: got %q %q, want an error", calendar, cron, zone)
		}
	}
}

func TestParseTimeSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "1min 30s": 90 * time.Second, "1.5h": 90 * time.Minute, "100ms": 100 * time.Millisecond, "2d": 48 * time.Hour, "5 minutes": 5 * time.Minute,
	} {
		got, ok, err := parseTimeSpan(text)
		if got != want || !ok || err != nil {
			t.Errorf("%q: got %v %v %v, want %v", text, got, ok, err, want)
		}
	}
	for _, text := range []string{"", "abc", "5 parsecs", "1e30", "-1"} {
		if got, _, err := parseTimeSpan(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}
