package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// pluginFaultCoverage names the tests of one fault of a plugin, by kind of plugin: a file and a text in it,
// separated by a colon.
type pluginFaultCoverage struct {
	fault                string
	driver, hook, device string // empty if plugins of the kind cannot have the fault
}

const (
	launchErrors = "plugins/host/launch/launch_test.go:" // the launch of a plugin is the same for all kinds
	driverFaulty = "cmd/nomad-lite/systemtest/faults/driverfaults_test.go:"
	driverHangs  = "cmd/nomad-lite/systemtest/hostile/testdata/script/hostile_driver_hangs.txtar:"
	driverPanics = "cmd/nomad-lite/systemtest/hostile/testdata/script/hostile_driver_panics.txtar:"
	driverWire   = "plugins/driver/driverwire/odd_test.go:"
	hookFaulty   = "cmd/nomad-lite/systemtest/faults/hostilehook_test.go:"
	hookStrange  = "cmd/nomad-lite/systemtest/hostile/testdata/script/hook_strange.txtar:"
	deviceFaulty = "cmd/nomad-lite/systemtest/hostile/testdata/script/device_hostile.txtar:"
	deviceWire   = "plugins/device/devicewire/wire_test.go:"
	deviceStates = "plugins/host/supervisor/devices_test.go:"
	hookRepeats  = "runtime/node/hooks/pluginhooks/pluginhooks_test.go:"
	supervised   = "plugins/host/supervisor/supervisor_test.go:"
	supervisedBy = "plugins/host/supervisor/process_test.go:"
)

var pluginFaultTests = []pluginFaultCoverage{
	// launch
	{"not executable", launchErrors + `"no execute bit"`, hookStrange + "not-executable failed", launchErrors + `"no execute bit"`},
	{"another architecture", launchErrors + `"another architecture"`, launchErrors + `"another architecture"`, launchErrors + `"another architecture"`},
	{"a missing library", launchErrors + `"a library that is not there"`, launchErrors + `"a library that is not there"`, launchErrors + `"a library that is not there"`},
	{"text before the handshake", launchErrors + `{"text",`, hookStrange + "text failed", launchErrors + `{"text",`},
	{"a part of the handshake line", launchErrors + `{"partial",`, hookStrange + "partial failed", launchErrors + `{"partial",`},
	{"another magic cookie", launchErrors + `{"cookie",`, hookStrange + "cookie failed", launchErrors + `{"cookie",`},
	{"another core protocol version", launchErrors + `{"line=9|2|unix`, launchErrors + `{"line=9|2|unix`, launchErrors + `{"line=9|2|unix`},
	{"another protocol version", launchErrors + `{"line=1|1|unix`, hookStrange + "handshake failed", launchErrors + `{"line=1|1|unix`},
	{"an exit after the handshake", launchErrors + `{"handshake-exit",`, hookStrange + "exits failed", launchErrors + `{"handshake-exit",`},
	{"no handshake", launchErrors + `{"silent",`, hookStrange + "-- plugins/silent --", launchErrors + `{"silent",`},
	{"a late handshake", "cmd/nomad-lite/systemtest/commands/testdata/script/run_slow_plugin.txtar:waiting for plugin slow", "runtime/node/hooks/pluginhooks/pending_test.go:TestPendingWaitsForUnknownPlugins", launchErrors + `{"silent",`},
	{"a panic in the launch", launchErrors + `{"panic",`, hookStrange + "quits failed", launchErrors + `{"panic",`},
	{"100 MB on stderr before the handshake", launchErrors + `"stderr-first"`, launchErrors + `"stderr-first"`, launchErrors + `"stderr-first"`},
	{"a socket that does not exist", launchErrors + `{"no-socket",`, launchErrors + `{"no-socket",`, launchErrors + `{"no-socket",`},
	{"a socket without a listener", launchErrors + `{"not-listening",`, launchErrors + `{"not-listening",`, launchErrors + `{"not-listening",`},
	{"a socket of another user", launchErrors + `{"foreign",`, launchErrors + `{"foreign",`, launchErrors + `{"foreign",`},

	// identity
	{"a name other than the file's", "cmd/nomad-lite/systemtest/jobs/driverdialects_test.go:antique-", hookStrange + "name hook somebody", launchErrors + `{"info=../x`},
	{"two plugins with one name and version", "plugins/host/supervisor/arbitration_test.go:TestArbitratePlugins", hookStrange + `is served by plugin "twin"`, "plugins/host/supervisor/arbitration_test.go:TestArbitratePlugins"},
	{"a malformed version", launchErrors + `{"info=x;one;`, hookStrange + "version failed", launchErrors + `{"info=x;one;`},
	{"no API version", launchErrors + `{"info=x;1;;",`, hookStrange + "no-api failed", launchErrors + `{"info=x;1;;",`},
	{"another type", launchErrors + "TestDeviceHasNoDriver", hookStrange + "driver driver driver", deviceFaulty + "type +.* false +false +failed"},
	{"a schema that changes", driverFaulty + `"other-schema"`, hookStrange + "slay 'strange-hook (changes|renamed)'", ""},
	{"a recursive schema", driverWire + `"a spec without end"`, "", driverWire + `"a spec without end"`},
	{"a large schema", driverFaulty + `"oversize TaskConfigSchema"`, hookStrange + "large failed", hookStrange + "large failed"},

	// calls
	{"a hang in a call of the launch", launchErrors + `{"hang=SetConfig",`, hookStrange + "-- silent.hcl --", launchErrors + `{"hang=SetConfig",`},
	{"a hang in a call", driverHangs + "call=StopTask", hookFaulty + `mode: "hang"`, deviceFaulty + "a plugin that hangs does not delay"},
	{"slow answers", driverFaulty + `"slow 1s"`, hookFaulty + `mode: "late"`, "runtime/node/resources/devices/devices_test.go:TestReserveWaitsForThePluginOfADevice"},
	{"each gRPC code", driverFaulty + `"code StartTask %d"`, hookFaulty + `"code `, deviceWire + "TestUnusableAnswers"},
	{"methods that are not implemented", "cmd/nomad-lite/systemtest/jobs/driverdialects_test.go:TestDriversOfEachDialect", "plugins/hook/hookwire/wire_test.go:TestUnimplementedHookPoint", deviceWire + "TestUnusableAnswers"},
	{"missing messages", driverWire + "func TestMalformedServer(", "plugins/hook/validate_test.go:TestFaultOfPrestartResponse", deviceWire + "TestClientRejectsInvalidReservations"},
	{"a response above the limit", driverFaulty + `"oversize StartTask"`, hookFaulty + `"oversize"`, deviceWire + "TestUnusableAnswers"},
	{"a response that is no message", driverFaulty + `"corrupt StartTask"`, hookFaulty + `mode: "corrupt"`, deviceWire + "TestUnusableAnswers"},
	{"a handle for another task", driverFaulty + `"foreign-handle"`, "", ""},
	{"a handle of a later version", driverFaulty + `"future-handle"`, "", ""},

	// WaitTask
	{"WaitTask returns at once", driverFaulty + `"wait-at-once"`, "", ""},
	{"WaitTask never returns", driverFaulty + `"runs-forever"`, "", ""},
	{"WaitTask fails, then succeeds", driverFaulty + `"wait-error-once"`, "", ""},
	{"WaitTask returns an exit code, a signal and an error", driverFaulty + `"wait-everything"`, "", ""},
	{"WaitTask ends without a result", driverWire + "TestMalformedWaitTaskResponse", "", ""},

	// streams
	{"fingerprints each millisecond", driverFaulty + `"endless-fingerprints"`, "", deviceStates + "TestFlappingDevicesChangeOncePerSecond"},
	{"statistics without pause", driverFaulty + `"stats-flood"`, "", "runtime/node/resources/devices/devices_test.go:TestStatsWithoutPause"},
	{"statistics that stop", driverFaulty + `"stats-stop"`, "", "runtime/node/resources/devices/devices_test.go:TestStatsOfAFailingPlugin"},
	{"events of unknown tasks", driverFaulty + `"strange-events"`, hookFaulty + `"flood"`, ""},
	{"streams that end at once", supervised + "TestStreamsThatEndAtOnceAreReopened", "", deviceStates + `"a stream that ends"`},
	{"streams that close and reopen", driverFaulty + `"short-streams"`, "", deviceStates + `"a stream that ends"`},

	// life
	{"an exit after a call", driverFaulty + `"exit-after StartTask"`, hookStrange + "exits failed", deviceStates + `"a plugin that exits keeps its devices`},
	{"an exit in a call", driverPanics + "panic-StartTask", hookRepeats + "TestCallIsRepeatedOnceAfterPluginDeath", deviceFaulty + "a crash during the reservation is repeated"},
	{"channels that are closed early", driverWire + "TestClosedStatsChannel", "", ""},
	{"a closed socket", supervisedBy + "TestUnreachablePluginIsReplaced", hookStrange + "plugin unreachable, killing process", deviceStates + `"a plugin that no process can reach`},
	{"no answer of the health service", launchErrors + "TestUnresponsivePlugin", launchErrors + "TestUnresponsivePlugin", launchErrors + "TestUnresponsivePlugin"},
	{"a child that holds the output", launchErrors + "TestChildHoldsStreams", launchErrors + "TestChildHoldsStreams", launchErrors + "TestChildHoldsStreams"},
	{"a shutdown that is ignored", launchErrors + "TestStubbornPluginIsKilled", launchErrors + "TestStubbornPluginIsKilled", launchErrors + "TestStubbornPluginIsKilled"},
	{"an end by the kernel, as without memory", supervisedBy + "TestPluginKilled", supervised + "TestHookDiesDuringCalls", deviceStates + `"a plugin that exits keeps its devices`},
	{"a zombie", launchErrors + "TestZombieHasEnded", launchErrors + "TestZombieHasEnded", launchErrors + "TestZombieHasEnded"},
	{"an exit at each launch", supervised + "TestRelaunchThenBackoff", supervised + "TestHookThatDoesNotStart", supervised + "TestRelaunchThenBackoff"},

	// logs
	{"lines without end", launchErrors + `"long-line"`, launchErrors + `"long-line"`, launchErrors + `"long-line"`},
	{"binary lines, wrong types and unknown levels", launchErrors + "func TestLogRelay(", launchErrors + "func TestLogRelay(", launchErrors + "func TestLogRelay("},
	{"logs without pause", launchErrors + `"storm"`, hookFaulty + `mode: "flood"`, launchErrors + `"storm"`},
	{"logs without pause while the agent shuts down", supervisedBy + "TestLogStormAtTheEnd", supervisedBy + "TestLogStormAtTheEnd", supervisedBy + "TestLogStormAtTheEnd"},

	// false answers
	{"healthy, and each start fails", driverFaulty + `"code StartTask %d"`, "", ""},
	{"an ended task that runs", driverFaulty + `"runs-forever"`, "", ""},
	{"a running task that has ended", driverFaulty + `"wait-at-once"`, "", ""},
	{"a task that has ended is recovered", driverFaulty + `"recover-anything"`, "", ""},
	{"a running task is not recovered", driverFaulty + `"recover-nothing"`, "", ""},
	{"a running task is destroyed", driverFaulty + `"wait-at-once; destroy-nothing"`, "", ""},
	{"a response that is invalid for the task", "", hookFaulty + `mode: "lie mount"`, ""},
	{"a token of another task", "", hookFaulty + `"steal"`, ""},
}

// Each fault of a plugin has a test.
func TestEachPluginFaultIsTested(t *testing.T) {
	for _, c := range pluginFaultTests {
		if c.driver == "" && c.hook == "" && c.device == "" {
			t.Errorf("%s: no test", c.fault)
		}
		for _, reference := range []string{c.driver, c.hook, c.device} {
			file, text, _ := strings.Cut(reference, ":")
			if reference == "" {
				continue
			}
			content, err := os.ReadFile(filepath.Join(systemtest.RepositoryDir(), file))
			if err != nil || text == "" || !strings.Contains(string(content), text) {
				t.Errorf("%s: %s has no %s: %v", c.fault, file, text, err)
			}
		}
	}
}
