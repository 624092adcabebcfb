package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

type modeOfField int

const (
	bothModes   modeOfField = iota
	nodeOnly                // the node of a cluster
	aloneOnly               // an agent that schedules for itself
	choosesMode             // servers to join
)

// fieldModes has each field of Config, the modes in which it has an effect, and a file that reads it. A new field needs a line: a
// setting that restricts must be read in both modes, and one that a mode does not read needs a line of singleModeSettings.
var fieldModes = map[string]struct {
	mode   modeOfField
	reader string
}{
	"DataDir":                                  {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"LogLevel":                                 {bothModes, "cmd/nomad-lite/agent/logoutput.go"},
	"LogJSON":                                  {bothModes, "cmd/nomad-lite/agent/token.go"},
	"LogSourceLocation":                        {bothModes, "cmd/nomad-lite/agent/logoutput.go"},
	"PluginDir":                                {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Plugins":                                  {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"HookRules":                                {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"HostVolumePluginDir":                      {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"ArtifactSettings":                         {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"TemplateSettings":                         {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"BindAddr":                                 {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"HTTPListenAddr":                           {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"HTTPAdvertiseAddr":                        {bothModes, "cmd/nomad-lite/agent/listen.go"},
	"HTTPPort":                                 {bothModes, "cmd/nomad-lite/agent/listen.go"},
	"HTTPHeaders":                              {bothModes, "cmd/nomad-lite/agent/agent.go"},
	"MaxHTTPConnsPerClient":                    {bothModes, "cmd/nomad-lite/agent/listen.go"},
	"SocketGroup":                              {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"TLS.ServeHTTPS":                           {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"TLS.CAFile":                               {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"TLS.CertFile":                             {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"TLS.KeyFile":                              {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"TLS.VerifyClient":                         {bothModes, "cmd/nomad-lite/agent/config.go"},
	"TLS.MinVersion":                           {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"TLS.CipherSuites":                         {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"OIDCIssuer":                               {aloneOnly, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"TLSHandshakeTimeout":                      {bothModes, "cmd/nomad-lite/agent/agent.go"},
	"DisableAccessControl":                     {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Audit.Enabled":                            {bothModes, "cmd/nomad-lite/agent/token.go"},
	"Audit.Sinks":                              {bothModes, "cmd/nomad-lite/agent/token.go"},
	"Audit.Filters":                            {bothModes, "cmd/nomad-lite/agent/token.go"},
	"AccessControlSource":                      {bothModes, "cmd/nomad-lite/agent/token.go"},
	"EnableDebug":                              {bothModes, "cmd/nomad-lite/agent/agent.go"},
	"DisableWebPage":                           {bothModes, "cmd/nomad-lite/agent/agent.go"},
	"DisableRemoteExec":                        {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"HideWebPageURLs":                          {bothModes, "cmd/nomad-lite/agent/config.go"},
	"Telemetry.OmitPrometheusFormat":           {bothModes, "runtime/agent/httpapi/metrics.go"},
	"Telemetry.OmitNodeMetrics":                {bothModes, "runtime/agent/collect/collect.go"},
	"Telemetry.OmitAllocationMetrics":          {bothModes, "runtime/agent/collect/tasks.go"},
	"Telemetry.OmitDispatchedJobSummary":       {bothModes, "runtime/agent/collect/jobs.go"},
	"Telemetry.OmitHost":                       {bothModes, "internal/metrics/set.go"},
	"Telemetry.Filter.Rules":                   {bothModes, "internal/metrics/settings.go"},
	"Telemetry.Filter.OmitDefault":             {bothModes, "internal/metrics/settings.go"},
	"Telemetry.CollectionInterval":             {bothModes, "internal/metrics/settings.go"},
	"Telemetry.IncludeAllocMetadata":           {bothModes, "runtime/agent/collect/tasks.go"},
	"Telemetry.AllowedMetadataKeys":            {bothModes, "runtime/agent/collect/tasks.go"},
	"Telemetry.Sinks":                          {bothModes, "runtime/agent/collect/push.go"},
	"OTLP.Endpoint":                            {bothModes, "runtime/agent/otlp/config.go"},
	"OTLP.Protocol":                            {bothModes, "runtime/agent/otlp/metrics.go"},
	"OTLP.Headers":                             {bothModes, "runtime/agent/otlp/send.go"},
	"OTLP.TasksGetTraceparent":                 {bothModes, "runtime/agent/otlp/config.go"},
	"OTLP.ExportMetrics":                       {bothModes, "runtime/agent/otlp/config.go"},
	"LeaveOnInterrupt":                         {bothModes, "cmd/nomad-lite/agent/run.go"},
	"LeaveOnTerminate":                         {bothModes, "cmd/nomad-lite/agent/run.go"},
	"DrainOnExit.Deadline":                     {bothModes, "cmd/nomad-lite/agent/run.go"},
	"DrainOnExit.StopAllAtOnce":                {bothModes, "cmd/nomad-lite/agent/run.go"},
	"DrainOnExit.IgnoreSystemJobs":             {nodeOnly, "cmd/nomad-lite/agent/run.go"},
	"Cluster.Servers":                          {choosesMode, "runtime/agent/config/cluster.go"},
	"Cluster.RetryJoin":                        {choosesMode, "runtime/agent/config/cluster.go"},
	"Cluster.IntroductionToken":                {nodeOnly, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Cluster.EncryptRPC":                       {nodeOnly, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Cluster.VerifyServerHostname":             {nodeOnly, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Cluster.Multiplex.AcceptBacklog":          {nodeOnly, "runtime/cluster/wire/dial.go"},
	"Cluster.Multiplex.KeepAliveInterval":      {nodeOnly, "runtime/cluster/wire/dial.go"},
	"Cluster.Multiplex.ConnectionWriteTimeout": {nodeOnly, "runtime/cluster/wire/dial.go"},
	"Cluster.Multiplex.StreamOpenTimeout":      {nodeOnly, "runtime/cluster/wire/dial.go"},
	"Cluster.Multiplex.StreamCloseTimeout":     {nodeOnly, "runtime/cluster/wire/dial.go"},
	"Cluster.ServerEnabled":                    {choosesMode, "runtime/agent/config/cluster.go"},
	"Cluster.AccessControl":                    {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Tokens.MinExpirationTTL":                  {aloneOnly, "cmd/nomad-lite/agent/token.go"},
	"Tokens.MaxExpirationTTL":                  {aloneOnly, "cmd/nomad-lite/agent/token.go"},
	"Tokens.GCThreshold":                       {aloneOnly, "cmd/nomad-lite/agent/token.go"},
	"Cluster.ServerHTTPAddr":                   {nodeOnly, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Cluster.TemplateMaxBlock":                 {nodeOnly, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Cluster.TemplateMaxStale":                 {nodeOnly, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Node.Name":                                {bothModes, "runtime/agent/localnode/publicaddress.go"},
	"Node.Datacenter":                          {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.Region":                              {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.Class":                               {bothModes, "runtime/agent/localnode/node.go"},
	"Node.Pool":                                {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.Meta":                                {bothModes, "runtime/agent/localnode/meta.go"},
	"Node.Reserved.CPUMHz":                     {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.Reserved.MemoryMB":                   {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.Reserved.DiskMB":                     {bothModes, "runtime/agent/localnode/record.go"},
	"Node.Reserved.Ports":                      {bothModes, "runtime/agent/localnode/record.go"},
	"Node.Reserved.CoreIDs":                    {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.CPUMHzOverride":                      {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.MemoryMBOverride":                    {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.DiskMBOverride":                      {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.Interface.Name":                      {bothModes, "runtime/agent/localnode/publicaddress.go"},
	"Node.Interface.MBits":                     {bothModes, "runtime/agent/localnode/networks.go"},
	"Node.MaxAllocs":                           {bothModes, "runtime/agent/localnode/record.go"},
	"Node.MinDynamicPort":                      {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.MaxDynamicPort":                      {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.ClientMinPort":                       {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.ClientMaxPort":                       {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.AdvertisedHTTPAddr":                  {bothModes, "runtime/agent/localnode/node.go"},
	"Node.APIUsesTLS":                          {bothModes, "runtime/agent/localnode/record.go"},
	"Node.RefuseConsulServices":                {aloneOnly, "runtime/agent/localnode/settings.go"},
	"Node.Networks.Bridge.Name":                {bothModes, "runtime/node/network/hostnet/fingerprint.go"},
	"Node.Networks.Bridge.IPv4Subnet":          {bothModes, "runtime/node/network/hostnet/hostnet.go"},
	"Node.Networks.Bridge.IPv6Subnet":          {bothModes, "runtime/node/network/bridge/loopback.go"},
	"Node.Networks.Bridge.NoHairpin":           {bothModes, "runtime/node/network/hostnet/fingerprint.go"},
	"Node.Networks.Bridge.AddressesForwardingOnlyHostIPPorts": {bothModes, "runtime/node/network/hostnet/hostnet.go"},
	"Node.Networks.CNI.PluginDirs":                            {bothModes, "runtime/node/network/hostnet/hostnet.go"},
	"Node.Networks.CNI.ConfigDir":                             {bothModes, "runtime/node/network/hostnet/hostnet.go"},
	"Node.Networks.CNICacheDir":                               {bothModes, "runtime/node/network/hostnet/hostnet.go"},
	"Node.Networks.HostNetworks":                              {bothModes, "runtime/node/network/hostnet/hostnetwork.go"},
	"Node.HostVolumes":                                        {bothModes, "runtime/agent/localnode/volumes.go"},
	"Node.HostVolumeOptions":                                  {bothModes, "runtime/agent/localnode/volumes.go"},
	"HostVolumesDir":                                          {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"MaxKillTimeout":                                          {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"DynamicUserRange.Min":                                    {bothModes, "runtime/agent/config/config.go"},
	"DynamicUserRange.Max":                                    {bothModes, "runtime/agent/config/config.go"},
	"EnvDenylist":                                             {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"EnvAllowlist":                                            {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"UserDenylist":                                            {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"UserCheckedDrivers":                                      {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"ChrootEnv":                                               {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"FallBackToNomadFileModes":                                {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"AllowSetuidAndDevicesInAllocs":                           {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"DriverAllowlist":                                         {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"DriverDenylist":                                          {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"LegacyEnableRawExec":                                     {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"GC.MaxAllocsOnDisk":                                      {bothModes, "runtime/core/noderunner/gc.go"},
	"GC.MaxDiskUsagePercent":                                  {bothModes, "runtime/core/noderunner/gc.go"},
	"GC.MaxInodeUsagePercent":                                 {bothModes, "runtime/core/noderunner/gc.go"},
	"GC.DiskCheckInterval":                                    {bothModes, "runtime/core/noderunner/gc.go"},
	"GC.MaxParallelRemovals":                                  {bothModes, "runtime/core/noderunner/gc.go"},
	"GC.MinEndedTimeForDiskUsageGC":                           {bothModes, "runtime/core/noderunner/gc.go"},
	"JobLimits.MaxTotalCount":                                 {aloneOnly, "runtime/job/model/admit.go"},
	"JobLimits.MaxPriority":                                   {aloneOnly, "runtime/job/model/job.go"},
	"JobLimits.DefaultPriority":                               {aloneOnly, "runtime/agent/httpapi/job_check.go"},
	"JobLimits.TrackedVersions":                               {aloneOnly, "runtime/scheduler/versions.go"},
	"Scheduler.MemoryOversubscription":                        {aloneOnly, "runtime/agent/config/config.go"},
	"Scheduler.NoSystemPreemption":                            {aloneOnly, "runtime/agent/config/config.go"},
	"Scheduler.SysbatchPreemption":                            {aloneOnly, "runtime/agent/config/config.go"},
	"Scheduler.BatchPreemption":                               {aloneOnly, "runtime/agent/config/config.go"},
	"Scheduler.ServicePreemption":                             {aloneOnly, "runtime/agent/config/config.go"},
	"JobLimits.MaxSourceBytes":                                {aloneOnly, "runtime/agent/httpapi/job_write.go"},
	"Scheduler.RejectJobRegistration":                         {aloneOnly, "runtime/agent/config/config.go"},
	"Scheduler.PauseEvalBroker":                               {aloneOnly, "runtime/agent/config/config.go"},
	"DisableEventStream":                                      {aloneOnly, "cmd/nomad-lite/agent/agent.go"},
	"Search.DisableFuzzy":                                     {aloneOnly, "runtime/agent/httpapi/search.go"},
	"Search.MaxObjects":                                       {aloneOnly, "runtime/agent/httpapi/search.go"},
	"Search.MaxMatches":                                       {aloneOnly, "runtime/agent/httpapi/search.go"},
	"Search.MinTextLen":                                       {aloneOnly, "runtime/agent/httpapi/search.go"},
	"CgroupParent":                                            {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"Node.Interface.AddressFamily":                            {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.ReservableCoreIDs":                                  {bothModes, "runtime/agent/localnode/settings.go"},
	"Node.FreeDiskMBOverride":                                 {bothModes, "runtime/agent/localnode/settings.go"},
	"LegacyDockerOptions":                                     {bothModes, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"WebPageLabel.Text":                                       {bothModes, "runtime/agent/ui/ui.go"},
	"WebPageLabel.BackgroundColor":                            {bothModes, "runtime/agent/ui/ui.go"},
	"WebPageLabel.TextColor":                                  {bothModes, "runtime/agent/ui/ui.go"},
	"KeyLifetime.RotateAfter":                                 {bothModes, "runtime/store/identity/keylifetime.go"},
	"KeyLifetime.RemoveAfter":                                 {bothModes, "runtime/store/identity/keylifetime.go"},
	"KeyLifetime.CheckInterval":                               {bothModes, "runtime/store/identity/keylifetime.go"},
	"EventBufferSize":                                         {aloneOnly, "cmd/nomad-lite/internal/agentconfig/config.go"},
	"SchedulerGC.SweepInterval":                               {aloneOnly, "runtime/scheduler/collect.go"},
	"SchedulerGC.MinDeadJobAge":                               {aloneOnly, "runtime/scheduler/collect.go"},
	"SchedulerGC.MinEvalAndAllocAge":                          {aloneOnly, "runtime/scheduler/collect.go"},
	"SchedulerGC.MinBatchEvalAndAllocAge":                     {aloneOnly, "runtime/scheduler/collect.go"},
	"SchedulerGC.MinDeploymentAge":                            {aloneOnly, "runtime/scheduler/collect.go"},
	"SchedulerGC.MaxUnneededAllocs":                           {aloneOnly, "runtime/scheduler/collect.go"},
	"SchedulerGC.MaxUnneededEvals":                            {aloneOnly, "runtime/scheduler/collect.go"},
}

// walkFields calls visit for each field of v, with its dotted name. A struct that has exported fields is not visited itself.
func walkFields(v reflect.Value, prefix string, visit func(name string, field reflect.Value)) {
	for i := range v.NumField() {
		name, field := strings.TrimPrefix(prefix+"."+v.Type().Field(i).Name, "."), v.Field(i)
		if field.Kind() == reflect.Pointer && field.Type().Elem().Kind() == reflect.Struct {
			field.Set(reflect.New(field.Type().Elem()))
			field = field.Elem()
		}
		if field.Kind() == reflect.Struct && field.NumField() > 0 && field.Type().Field(0).IsExported() {
			walkFields(field, name, visit)
		} else {
			visit(name, field)
		}
	}
}

// setNonZero gives a field a value that is not zero. Values of structs without exported fields and of pointers are not warned of.
func setNonZero(t *testing.T, name string, field reflect.Value) {
	switch field.Kind() {
	case reflect.Bool:
		field.SetBool(true)
	case reflect.String:
		field.SetString("x")
	case reflect.Int, reflect.Int64:
		field.SetInt(1)
	case reflect.Uint16, reflect.Uint64:
		field.SetUint(1)
	case reflect.Float64:
		field.SetFloat(1)
	case reflect.Slice:
		field.Set(reflect.MakeSlice(field.Type(), 1, 1))
	case reflect.Map:
		field.Set(reflect.MakeMap(field.Type()))
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
	case reflect.Struct:
	default:
		t.Fatalf("%s: the test cannot set a %s", name, field.Kind())
	}
}

// Each field of the configuration has an effect in both modes, or a warning in the mode in which it has none.
func TestFieldHasEffectOrWarningInEachMode(t *testing.T) {
	seen := map[string]bool{}
	walkFields(reflect.ValueOf(&Config{}).Elem(), "", func(name string, _ reflect.Value) {
		seen[name] = true
		listed, ok := fieldModes[name]
		if !ok {
			t.Errorf("%s: name in fieldModes in which modes the field has an effect", name)
			return
		}
		source, err := os.ReadFile(filepath.Join("../../..", listed.reader))
		last := name[strings.LastIndexByte(name, '.')+1:]
		if err != nil || !regexp.MustCompile(`\.`+last+`\b`).Match(source) {
			t.Errorf("%s does not read %s: %v", listed.reader, name, err)
		}
		for _, isNode := range []bool{false, true} {
			c := &Config{}
			walkFields(reflect.ValueOf(c).Elem(), "", func(other string, field reflect.Value) {
				if other == name {
					setNonZero(t, name, field)
				}
			})
			if listed.mode == choosesMode {
				continue
			}
			if isNode {
				c.Cluster.Servers = []string{"a"}
			}
			want := listed.mode == nodeOnly && !isNode || listed.mode == aloneOnly && isNode
			if warnings := c.singleModeWarnings(); (len(warnings) == 1) != want || len(warnings) > 1 {
				t.Errorf("%s, on a node %v: %q, want a warning: %v", name, isNode, warnings, want)
			}
		}
	})
	for name := range fieldModes {
		if !seen[name] {
			t.Errorf("%s is no field", name)
		}
	}
}

// A file warns of settings for the other mode. Servers of a flag make the agent a node, too.
func TestSingleModeWarnings(t *testing.T) {
	for _, test := range []struct {
		text    string
		servers []string
		want    []string
	}{
		{`tls { rpc = true }`, nil, []string{"configuration: warning: tls.rpc has no effect: without servers, there is no connection to one"}},
		{`tls { rpc = true }`, []string{"a"}, nil},
		{"client { servers = [\"a\"] }\ntls { rpc = true }", nil, nil},
		{`client { disable_remote_exec = true }`, nil, nil},
		{`client { refuse_consul_services = true }`, []string{"a"}, []string{"configuration: warning: client.refuse_consul_services has no effect: the servers of the cluster place jobs"}},
		{"client { servers = [\"a\"] }\nserver { job_gc_threshold = \"1h\" }", nil, []string{"configuration: warning: server: garbage collection has no effect: the servers of the cluster collect garbage"}},
	} {
		file := filepath.Join(t.TempDir(), "a.hcl")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, diags := Load([]string{file}, test.servers, false)
		if got := diagnosticLines(diags); !slices.Equal(got, test.want) {
			t.Errorf("%s, servers %v: %q, want %q", test.text, test.servers, got, test.want)
		}
	}
}
