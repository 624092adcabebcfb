package systemd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

var calendarNames = map[string]string{
	"minutely": "*-*-* *:*:00", "hourly": "*-*-* *:00:00", "daily": "*-*-* 00:00:00", "weekly": "Mon *-*-* 00:00:00", "monthly": "*-*-01 00:00:00",
	"quarterly": "*-01,04,07,10-01 00:00:00", "semiannually": "*-01,07-01 00:00:00", "yearly": "*-01-01 00:00:00", "annually": "*-01-01 00:00:00",
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// cronOf returns the cron expression of a value of OnCalendar, and its time zone or an empty text. It has seven fields with
// seconds and years if the value has them.
func cronOf(text string) (cron, zone string, err error) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return "", "", fmt.Errorf("the value is empty")
	}
	if last := fields[len(fields)-1]; len(fields) > 1 && (last == "UTC" || strings.Contains(last, "/") && last[0] >= 'A' && last[0] <= 'Z') {
		if _, err := time.LoadLocation(last); err != nil {
			return "", "", err
		}
		zone, fields = last, fields[:len(fields)-1]
	}
	if full, ok := calendarNames[strings.ToLower(fields[0])]; ok && len(fields) == 1 {
		fields = strings.Fields(full)
	}
	dow, date, clock := "*", "*-*-*", "00:00:00"
	hasDate, hasClock := false, false
	for i, field := range fields {
		first := field[0] | 0x20
		switch {
		case i == 0 && first >= 'a' && first <= 'z':
			if dow, err = weekdaysOf(field); err != nil {
				return "", "", err
			}
		case strings.Contains(field, ":") && !hasClock:
			clock, hasClock = field, true
		case strings.ContainsAny(field, "-~") && !hasDate && !hasClock:
			date, hasDate = field, true
		default:
			return "", "", fmt.Errorf("%q is no part of a calendar expression", field)
		}
	}
	year, month, day, err := dateFields(date)
	if err != nil {
		return "", "", err
	}
	if day != "*" && dow != "*" {
		return "", "", fmt.Errorf("a cron expression cannot restrict the day of the month and that of the week at once")
	}
	parts := strings.Split(clock, ":")
	if len(parts) == 2 {
		parts = append(parts, "00")
	}
	if len(parts) != 3 {
		return "", "", fmt.Errorf("%q is no time", clock)
	}
	hour, err := cronField(parts[0], 0, 23)
	if err != nil {
		return "", "", err
	}
	minute, err := cronField(parts[1], 0, 59)
	if err != nil {
		return "", "", err
	}
	second, err := cronField(parts[2], 0, 59)
	if err != nil {
		return "", "", err
	}
	cron = strings.Join([]string{minute, hour, day, month, dow}, " ")
	if second != "0" || year != "*" {
		cron = second + " " + cron + " " + year
	}
	return cron, zone, nil
}

func dateFields(date string) (year, month, day string, err error) {
	date, lastDay, fromEnd := strings.Cut(date, "~")
	parts := strings.Split(date, "-")
	if fromEnd {
		if strings.TrimLeft(lastDay, "0") != "1" {
			return "", "", "", fmt.Errorf("a cron expression has only the last day of a month, not ~%s", lastDay)
		}
		parts = append(parts, "L")
	}
	if len(parts) == 2 {
		parts = append([]string{"*"}, parts...)
	}
	if len(parts) != 3 {
		return "", "", "", fmt.Errorf("%q is no date", date)
	}
	const firstYear, lastYear = 1970, 2099
	if year, err = cronField(parts[0], firstYear, lastYear); err != nil {
		return "", "", "", err
	}
	if month, err = cronField(parts[1], 1, 12); err != nil {
		return "", "", "", err
	}
	if parts[2] == "L" {
		return year, month, "L", nil
	}
	day, err = cronField(parts[2], 1, 31)
	return year, month, day, err
}

// cronField converts one component, such as "*", "0/15", "1..5" or "2,4".
func cronField(text string, least, most int) (string, error) {
	var items []string
	for _, item := range strings.Split(text, ",") {
		span, step, hasStep := strings.Cut(item, "/")
		first, last, isRange := strings.Cut(span, "..")
		stepNumber := 1
		var err error
		if hasStep {
			if stepNumber, err = boundedNumber(step, 1, most); err != nil {
				return "", err
			}
		}
		if first == "*" && !isRange {
			if stepNumber > 1 {
				items = append(items, "*/"+strconv.Itoa(stepNumber))
			} else {
				items = append(items, "*")
			}
			continue
		}
		from, err := boundedNumber(first, least, most)
		if err != nil {
			return "", err
		}
		to := from
		switch {
		case isRange:
			if to, err = boundedNumber(last, from, most); err != nil {
				return "", err
			}
		case hasStep:
			to = most
		}
		switch {
		case hasStep && from == least && to == most:
			items = append(items, "*/"+strconv.Itoa(stepNumber))
		case hasStep:
			items = append(items, fmt.Sprintf("%d-%d/%d", from, to, stepNumber))
		case isRange:
			items = append(items, fmt.Sprintf("%d-%d", from, to))
		default:
			items = append(items, strconv.Itoa(from))
		}
	}
	return strings.Join(items, ","), nil
}

func boundedNumber(text string, least, most int) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || int(n) < least || int(n) > most {
		return 0, fmt.Errorf("%q is no whole number from %d to %d", text, least, most)
	}
	return int(n), nil
}

// weekdaysOf converts "Mon..Fri", "Sat,Sun" and the like to the numbers of cron.
func weekdaysOf(text string) (string, error) {
	var numbers []int
	for _, item := range strings.Split(strings.ToLower(text), ",") {
		first, last, isRange := strings.Cut(item, "..")
		from, to := weekdayNumber(first), weekdayNumber(last)
		if !isRange {
			to = from
		}
		if from < 0 || to < 0 {
			return "", fmt.Errorf("%q is no day of the week", text)
		}
		for n := from; ; n = (n + 1) % len(weekdays) {
			numbers = append(numbers, n)
			if n == to {
				break
			}
		}
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	if len(numbers) == len(weekdays) {
		return "*", nil
	}
	var items []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if j > i+1 {
			items = append(items, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		} else {
			for _, n := range numbers[i : j+1] {
				items = append(items, strconv.Itoa(n))
			}
		}
		i = j + 1
	}
	return strings.Join(items, ","), nil
}

func weekdayNumber(name string) int {
	const short = 3
	if len(name) < short {
		return -1
	}
	i := slices.Index(weekdays, name[:short])
	if i < 0 || len(name) > short && name != strings.ToLower(time.Weekday(i).String()) {
		return -1
	}
	return i
}

// cronEvery returns the cron expression for an interval that divides an hour or a day.
func cronEvery(interval time.Duration) (string, error) {
	minutes := int(interval / time.Minute)
	switch {
	case interval%time.Minute != 0 || minutes == 0:
	case minutes < 60 && 60%minutes == 0:
		return fmt.Sprintf("*/%d * * * *", minutes), nil
	case minutes%60 == 0 && minutes/60 < 24 && 24%(minutes/60) == 0:
		return fmt.Sprintf("0 */%d * * *", minutes/60), nil
	case minutes == 24*60:
		return "0 0 * * *", nil
	case minutes == 7*24*60:
		return "0 0 * * 0", nil
	}
	return "", fmt.Errorf("a cron expression has no interval of %s", interval)
}

// parseTimeSpan parses a span such as "1min 30s", "90" or "infinity", for which ok is false.
func parseTimeSpan(text string) (d time.Duration, ok bool, err error) {
	text = strings.TrimSpace(text)
	if text == "infinity" {
		return 0, false, nil
	}
	units := map[string]time.Duration{
		"": time.Second, "us": time.Microsecond, "usec": time.Microsecond, "ms": time.Millisecond, "msec": time.Millisecond,
		"s": time.Second, "sec": time.Second, "second": time.Second, "seconds": time.Second, "m": time.Minute, "min": time.Minute, "minute": time.Minute, "minutes": time.Minute,
		"h": time.Hour, "hr": time.Hour, "hour": time.Hour, "hours": time.Hour, "d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
		"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour, "weeks": 7 * 24 * time.Hour,
	}
	if text == "" {
		return 0, false, fmt.Errorf("the time is empty")
	}
	rest := text
	for rest != "" {
		end := strings.IndexFunc(rest, func(r rune) bool { return !(r >= '0' && r <= '9' || r == '.') })
		if end < 0 {
			end = len(rest)
		}
		n, err := strconv.ParseFloat(rest[:end], 64)
		if err != nil {
			return 0, false, fmt.Errorf("%q is no time span", text)
		}
		rest = strings.TrimLeft(rest[end:], " ")
		end = strings.IndexFunc(rest, func(r rune) bool { return r >= '0' && r <= '9' || r == ' ' || r == '.' })
		if end < 0 {
			end = len(rest)
		}
		unit, known := units[rest[:end]]
		const most = float64(100 * 365 * 24 * time.Hour)
		if !known || n*float64(unit)+float64(d) > most {
			return 0, false, fmt.Errorf("%q is no time span", text)
		}
		d += time.Duration(n * float64(unit))
		rest = strings.TrimLeft(rest[end:], " ")
	}
	return d, true, nil
}
