package taskrunner

import (
	"reflect"
	"testing"
)

const (
	configured = "set by New or before Run, from what the next agent has, too"
	ofAgent    = "belongs to this agent: the next one has its own"
	ofStep     = "is between two steps: the recovery derives the step from the record"
)

// volatile has each field outside the record in which a runner keeps something, and why an agent crash may lose it.
var volatile = map[reflect.Type]map[string]string{
	reflect.TypeFor[Runner](): {
		"startGate": configured, "awaitNewStart": configured, "encodeTaskConfig": configured, "records": "has the record", "requests": "see taskRequests", "driver": configured, "hooks": "see taskHooks",
		"ender": "see processEnder", "logger": ofAgent,
		"capabilities":            "copy of what the record has, for goroutines that must not wait for its lock",
		"transitions":             "for display; the next agent begins with its own",
		"firstStep":               ofStep,
		"schema":                  "is fetched from the driver again",
		"pluginDeathsDuringStart": "delays starts after deaths of a plugin process, which the next agent launches anew",
		"restartReattachedPlugin": configured,
		"pluginRestarted":         "is only about the plugin process that an earlier agent has launched",
		"startUndecided":          "the record has the id of the start: the next agent asks, too",
		"onlyDestroyRemains":      ofStep, "done": ofAgent,
	},
	reflect.TypeFor[recoverer](): {
		"Runner": "see Runner",
		"start":  "the record has the id of the start; the config is built again, and the calls are counted per agent",
	},
	reflect.TypeFor[taskRun](): {
		"recoverer": "see recoverer", "ctx": ofAgent, "killCtx": ofAgent, "forceKillCtx": ofAgent, "untilAllocStop": ofAgent,
		"outcome":      "the record has the exit until the decision about it; a failed start is decided again",
		"restartDelay": "the record has when the task starts again",
		"process":      "the record has the handle",
		"recovered":    "a process that the next agent takes over is one",
		"endWatch":     ofAgent,
		"stop":         "the record has the request; the next agent stops the process with its own attempts",
		"ended":        "the record has the exit; the next agent lets the driver destroy the start by its handle",
	},
	reflect.TypeFor[taskRecords](): {
		"store": configured, "onTaskStateChange": configured, "runReturned": ofAgent, "env": configured, "secrets": configured, "timeline": configured,
		"alloc": configured, "taskName": configured, "metrics": configured, "logger": ofAgent, "mu": ofAgent, "record": "is the record",
		"lastPutNumber": ofAgent, "lastFieldsPutNumber": ofAgent, "lastFinishedPutNumber": ofAgent, "putRetryDone": "a put that has failed is lost: the facts in it wait for it where they must not be lost",
	},
	reflect.TypeFor[taskRequests](): {
		"records":              "has the record",
		"killed":               "the allocation asks again; a kill that fails the task is in its state",
		"forceKilled":          "the allocation asks again",
		"jobPurged":            "the allocation asks again",
		"shutdownDelaySkipped": "the caller does not wait any longer; the delay of the next agent is a whole one",
		"rerunRequested":       "the record has the request",
		"omitKillEvents":       "is for display", "leakErr": "is for display",
		"killCtx": ofAgent, "cancelKilled": ofAgent,
		"task":               "comes with the allocation",
		"updateHooksPending": "hooks are called again for the version with which the next agent starts",
		"updateHooksRunning": ofAgent,
		"config":             configured, "cgroup": configured,
		"process":              "the record has the handle",
		"restartAttempt":       "the record has the request",
		"lastProcessEnded":     "is about processes that this agent has started",
		"lastExitUnobserved":   "is about processes that this agent has started",
		"earlierProcessMayRun": "is about processes that this agent has started; the record has the starts that the driver must destroy",
	},
	reflect.TypeFor[taskHooks](): {
		"dir": configured, "records": "has the record", "requests": "see taskRequests", "callLimits": configured, "hookChain": configured,
		"allocAttachmentByHookName": configured, "updateWG": ofAgent,
	},
	reflect.TypeFor[processEnder](): {
		"records": "has the record", "requests": "see taskRequests", "driver": configured, "endTaskWithoutDriver": configured,
		"destroyPendingEventEmitted": "the event is emitted again by the next agent, whose first attempt has failed, too",
	},
}

// A crash must lose nothing outside the record if the next agent needs it: each field states why.
func TestWhatACrashMayLose(t *testing.T) {
	for typ, reasons := range volatile {
		for i := range typ.NumField() {
			if name := typ.Field(i).Name; reasons[name] == "" {
				t.Errorf("%s.%s has no reason why a crash may lose it", typ, name)
			}
		}
		for name := range reasons {
			if _, ok := typ.FieldByName(name); !ok {
				t.Errorf("%s has no field %s", typ, name)
			}
		}
	}
}
