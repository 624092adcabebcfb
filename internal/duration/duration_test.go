package duration

import (
	"testing"
	"time"
)

func TestFormat(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		d    time.Duration
		want string
	}{
		{-time.Second, "0s"},
		{0, "0s"},
		{400 * time.Nanosecond, "0s"},
		{50 * time.Microsecond, "0.05ms"},
		{999500 * time.Nanosecond, "1ms"},
		{3424 * time.Microsecond, "3.42ms"},
		{34250 * time.Microsecond, "34.3ms"},
		{250 * time.Millisecond, "250ms"},
		{999600 * time.Microsecond, "1s"},
		{3 * time.Second, "3s"},
		{4214 * time.Millisecond, "4.21s"},
		{59949 * time.Millisecond, "59.9s"},
		{59950 * time.Millisecond, "1m"},
		{5*time.Minute + 12900*time.Millisecond, "5m12s"},
		{time.Hour, "1h"},
		{time.Hour + 59*time.Second, "1h"},
		{76*time.Hour + time.Minute, "3d4h"},
		{24*time.Hour + 3*time.Minute, "1d"},
		{400 * 24 * time.Hour, "1y1mo"},
	} {
		if got := Format(test.d); got != test.want {
			t.Errorf("%v: got %q, want %q", test.d, got, test.want)
		}
	}
}
