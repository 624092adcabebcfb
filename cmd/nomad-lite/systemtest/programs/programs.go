package programs

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/root"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver/drivertest"
)

// MainByProgramName maps the names under which a test binary can be executed to the programs that it then runs.
func MainByProgramName() map[string]func() {
	return map[string]func(){
		"nomad-lite":         runNomadLiteWithTestConfig,
		"old-driver":         serveOldProtocolDriver,
		"hostile-driver":     serveFaultyDriver,
		"hostile-sdk-driver": serveFaultySDKDriver,
		"dying-hook":         serveCrashingHook,
		"exec-driver":        serveRawExecAsExternalDriver,
		"shell-driver":       serveShellDriver,
		"chroot-driver":      serveExecAsExternalDriver,
		"hanging-hook":       serveHangingHook,
		"hostile-hook":       serveHostileHook,
		"quiet-hook":         serveNoopHook,
		"asking-hook":        serveHostAPITestHook,
		"acting-hook":        serveTaskActionHook,
		"strange-hook":       serveMisbehavingHook,
		"doomed-agent":       runAgentKilledBeforeStartTask,
		"mortal-agent":       serveKillableAgent,
		"faulty-agent":       runFailpointAgent,
		"without-cgroups":    execWithoutCgroups,
		"ask":                sendAPIRequest,
		"say-hello":          serveHelloHTTP,
		"mint":               createCAAndCertificates,
		"half-sender":        keepPartialRequestsOpen,
		"isolating-driver":   serveIsolatingDriver,
		"test-device":        serveTestDevicePlugin,
		"bus-device":         serveBusDevice,
		"pod-driver":         serveRareCapabilityDriver,
		"wire-driver":        drivertest.Main,
		"containers":         printDockerContainersOfScript,
		"step-clock":         stepClockForDuration,
		"net-peer":           runNetworkTestPeer,
	}
}

// runNomadLiteWithTestConfig runs nomad-lite. Its agents read the file of systemtest.TestConfigEnvVar first, with which
// they ignore the disk usage of this machine, because otherwise they could remove ended allocations before a test has
// checked them. They also start neither Java nor QEMU for a fingerprint; a test of these drivers sets driver.denylist
// to "". They listen on a free port unless a test chooses one, because tests run in parallel.
func runNomadLiteWithTestConfig() {
	config := os.Getenv(systemtest.TestConfigEnvVar)
	if config != "" && len(os.Args) > 1 && os.Args[1] == "agent" && !slices.Contains(os.Args, "-print-unit") && !slices.Contains(os.Args, "stop") {
		options := []string{"-config", config}
		if !slices.Contains(os.Args, "-dev") { // with -dev, an agent of root has no port
			options = append(options, "-config", filepath.Join(filepath.Dir(config), systemtest.FreePortConfigFile))
		}
		os.Args = slices.Insert(os.Args, 2, options...)
	}
	runNomadLite()
}

// RepeatStartsEnvVar is the environment variable that gives an agent a defect on purpose: see failpoint.RepeatStarts.
const RepeatStartsEnvVar = "NOMAD_LITE_TEST_REPEAT_STARTS"

// runNomadLite runs the program under test.
func runNomadLite() {
	failpoint.RepeatStarts = os.Getenv(RepeatStartsEnvVar) != ""
	os.Exit(root.Execute(os.Args[1:], &cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// sendAPIRequest is the program "ask METHOD PATH [BODY]" of the scripts. It sends a request to the agent of NOMAD_ADDR,
// and prints the response.
func sendAPIRequest() {
	client, err := api.NewClient(api.DefaultConfig())
	if err == nil && len(os.Args) < 3 {
		err = errors.New("usage: ask method path [body]")
	}
	var response json.RawMessage
	switch {
	case err != nil:
	case os.Args[1] == "GET":
		_, err = client.Raw().Query(os.Args[2], &response, nil)
	default:
		_, err = client.Raw().Write(os.Args[2], json.RawMessage(os.Args[3]), &response, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(response))
}

// serveHelloHTTP is the program "say-hello PORT" of the scripts: a web server that responds with "hello".
func serveHelloHTTP() {
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":"+os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello")
	})))
	os.Exit(1)
}
