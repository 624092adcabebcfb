package tracespan

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestEncodeTraceEvents(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	at := func(ms float64) time.Time { return begin.Add(time.Duration(ms * float64(time.Millisecond))) }
	trace := EncodeTraceEvents("web.g[0]", []Span{
		{ID: "1", Kind: KindHook, Name: "prestart", Plugin: "artifact", Task: "web", Start: at(0), End: at(1.5), Error: "not found"},
		{ID: "2", Kind: KindHook, Name: "prestart", Plugin: "script", Task: "web", Start: at(1), End: at(2)},   // overlaps span 1
		{ID: "3", Kind: KindHook, Name: "prestart", Plugin: "template", Task: "web", Start: at(2), End: at(3)}, // after both
		{ID: "4", Kind: KindEvent, Name: "Started", Task: "web", Start: at(3), End: at(3), Result: "Task started by client"},
		{ID: "5", Kind: KindRun, Name: "id", Task: "web", Start: at(3)},
		{ID: "6", Kind: KindRun, Name: "id", Task: "web", Start: at(4), End: at(3.5), Result: "Exit Code: 0"}, // span 5 has not ended; the clock was set back
	})
	var lines []string
	for _, e := range trace.Events {
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	const want = `{"ph":"M","name":"process_name","ts":0,"pid":1,"tid":0,"args":{"name":"web.g[0]"}}
{"ph":"M","name":"thread_name","ts":0,"pid":1,"tid":1,"args":{"name":"task web: hook"}}
{"ph":"X","name":"artifact (prestart)","cat":"hook","ts":0,"dur":1500,"pid":1,"tid":1,"args":{"error":"not found","span":"1","start":"2026-05-04T12:00:00Z","task":"web"}}
{"ph":"M","name":"thread_name","ts":0,"pid":1,"tid":2,"args":{"name":"task web: hook"}}
{"ph":"X","name":"script (prestart)","cat":"hook","ts":1000,"dur":1000,"pid":1,"tid":2,"args":{"span":"2","start":"2026-05-04T12:00:00.001Z","task":"web"}}
{"ph":"X","name":"template (prestart)","cat":"hook","ts":2000,"dur":1000,"pid":1,"tid":1,"args":{"span":"3","start":"2026-05-04T12:00:00.002Z","task":"web"}}
{"ph":"M","name":"thread_name","ts":0,"pid":1,"tid":3,"args":{"name":"task web: event"}}
{"ph":"i","name":"Started","cat":"event","ts":3000,"pid":1,"tid":3,"s":"t","args":{"result":"Task started by client","span":"4","start":"2026-05-04T12:00:00.003Z","task":"web"}}
{"ph":"M","name":"thread_name","ts":0,"pid":1,"tid":4,"args":{"name":"task web: run"}}
{"ph":"B","name":"run: not ended","cat":"run","ts":3000,"pid":1,"tid":4,"args":{"span":"5","start":"2026-05-04T12:00:00.003Z","task":"web"}}
{"ph":"M","name":"thread_name","ts":0,"pid":1,"tid":5,"args":{"name":"task web: run"}}
{"ph":"X","name":"run: Exit Code: 0","cat":"run","ts":4000,"dur":0,"pid":1,"tid":5,"args":{"result":"Exit Code: 0","span":"6","start":"2026-05-04T12:00:00.004Z","task":"web"}}`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
