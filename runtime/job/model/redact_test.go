package model

import (
	"strings"
	"testing"
)

func TestRedactTaskEventKeepsSharedDetails(t *testing.T) {
	event := EventDriverFailure("no command hunter2")
	shared := event.Details
	RedactTaskEvent(event, func(s string) string { return strings.ReplaceAll(s, "hunter2", "…") })
	if event.DriverError != "no command …" || event.Details["driver_error"] != "no command …" {
		t.Errorf("redacted: %+v", event)
	}
	if shared["driver_error"] != "no command hunter2" {
		t.Errorf("details of other events were changed: %v", shared)
	}
}
