package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

// asset is a column of the table of promises.
type asset int

const (
	machineFiles asset = iota
	taskFiles
	agentFiles
	secrets
	processes
	network
	availability
	assetCount
)

var assetNames = [assetCount]string{
	machineFiles: "files of the machine", taskFiles: "files of other tasks", agentFiles: "files of the agent", secrets: "secrets",
	processes: "processes", network: "network identity", availability: "availability",
}

// promise is a cell: a sentence with the tests that attack it, or none with the reason.
type promise struct {
	text  string
	tests string // names, separated by spaces; empty means that nothing is promised, and text is the reason
}

// actor is a row.
type actor struct {
	name     string
	about    string
	promises [assetCount]promise
}

var (
	apiRoutes   = "TestToken TestRoutesRequireToken TestReadOnlyTokenAllowsListedRoutes"
	hostile     = "TestHostileJobsGetNothingMore"
	connsTests  = "TestFloodsDoNotDelayOthers TestClassesAreFair TestConnectionFloods TestSlowClients"
	volumeTests = "TestVolumesBelowDirectoriesOfTasks TestFoundVolumesCannotBeReplaced TestVolumesMountsHostVolumes TestSharedMounts TestLogOptionsOfTasks"
	portTests   = "TestPortIsNeverFree TestPortIsNotFreeWhileAddressChanges TestTaskThatTakesThePortOfTheAgent"
	isOperator  = "The task is a process of the agent's user."
	lyingTests  = "TestLyingServersGetNothingMore TestAllocationsThatCannotRunAreRejected FuzzAllocs"
	peerTests   = "TestTLSVerifiesBothEnds TestTLSRejectsPeersThatAreNoServers"
	jobTexts    = "TestJobTextsReadNothingMore TestHostileTextsReadNothing TestExchangedLinks"
	nodeTokens  = "TestNodeAcceptsNoTokenOfTasksAndServers"
)

// actors is the table of who may do what. SECURITY.md shows it.
var actors = []actor{
	{
		"Client without a token", "A program that connects to the API, and has no token.",
		[assetCount]promise{
			machineFiles: {"The API serves no file.", apiRoutes},
			taskFiles:    {"The API serves no file.", apiRoutes},
			agentFiles:   {"The API serves no file, and shows no configuration.", apiRoutes + " TestAgentSelf"},
			secrets:      {"The API answers `/v1/agent/health` and `/v1/agent/lite-proof` only, and shows no secret there. A proof is for one connection, and discloses no token.", "TestToken TestSecret TestProofIsForItsConnection FuzzProof"},
			processes:    {"The client starts, stops and signals nothing, with `agent -dev`, too. The agent reads no body of it.", "TestToken TestRoutesRequireToken TestBodiesOfClientsWithoutTokenAreNotRead"},
			network:      {"A web page of another site sends no request that the agent accepts.", "TestOtherWebSitesAreRejected TestCrossOriginRequests TestHostilePagesGetNothing"},
			availability: {"Connections, headers and bodies are limited for each user, address and task, and a part is the operator's.", connsTests + " TestHeadersHaveALimit"},
		},
	},
	{
		"Client with the read-only token", "A program that has the token of the file `token-read`.",
		[assetCount]promise{
			machineFiles: {"The API serves no file to the token.", "TestReadOnlyTokenAllowsListedRoutes"},
			taskFiles:    {"The API serves neither files nor logs to the token.", "TestReadOnlyTokenAllowsListedRoutes TestReadOnlyTokenAccess"},
			agentFiles:   {"The API serves no file, debug bundle or log to the token.", "TestReadOnlyTokenAllowsListedRoutes"},
			secrets:      {"Replies and events have no variables, environments, arguments or templates.", "TestReadOnlyTokenHidesSecrets TestReadOnlyTokenSeesEventsWithoutSecrets"},
			processes:    {"The token changes nothing.", "TestReadOnlyTokenAllowsListedRoutes TestReadOnlyTokenAccess"},
			network:      {text: "The token reads the addresses and ports of allocations: tools need them."},
			availability: {"Connections of the token are a part of their own.", connsTests},
		},
	},
	{
		"Task with its identity", "A program that has the token of a task, at the socket of the task or over TCP.",
		[assetCount]promise{
			machineFiles: {"The API serves no file to the token.", "TestWorkloadIsRejectedByDefault"},
			taskFiles:    {"The API serves no file to the token.", "TestWorkloadIsRejectedByDefault"},
			agentFiles:   {"The API serves no file to the token.", "TestWorkloadIsRejectedByDefault"},
			secrets:      {"The token reads the variables at `nomad/jobs` and those of its job, group and task, and nothing after the end of the allocation.", "TestWorkloadAccess TestWorkloadTokenThatIsNotValid TestBlockingReadsEndWithAllocation"},
			processes:    {"The token starts, stops and signals nothing.", "TestWorkloadIsRejectedByDefault"},
			network:      {"A token is accepted only if the agent has signed it.", "TestAuthenticate FuzzAuthenticate"},
			availability: {"A task takes no connections of other tasks, and none of the operator on the unix socket.", "TestTaskCannotTakeConnectionsOfOthers " + connsTests},
		},
	},
	{
		"Other account", "A person or a program with another account of the machine. The agent runs as root, or as a user of its own.",
		[assetCount]promise{
			machineFiles: {"The agent writes no file for the account. Under an agent of root, set-user-ID programs and devices of tasks have no effect below the directory of allocations, unless the agent says at its start that it cannot mount it.", "TestSetuidProgramsOfTasks TestSetIDBits " + hostile},
			taskFiles:    {"The account neither reads nor changes a file in the directory of an allocation whose tasks have other users, and replaces no host volume.", "TestOtherAccountsGetNothing TestUnprivilegedAgentClosesItsDirectory TestFoundVolumesCannotBeReplaced"},
			agentFiles:   {"The account neither reads nor changes a file of the agent. The agent runs no plugin and reads no configuration that the account can change, except that a start reads a configuration that belongs to the account, with a warning.", "TestOtherAccountsGetNothing TestUnprivilegedAgentClosesItsDirectory TestUnsafePluginIsRefused TestPluginWithWriterIsRefused TestOnlyCheckedContentIsExecuted TestUnsafePluginIsNotUsed TestUnsafeDirectoryIsRefused TestWritableConfigIsRefused TestConfigInWritableDirIsRefused"},
			secrets:      {"The account gets no token, no key and no one-time secret of `nomad-lite ui`. No command sends it a token or a request while it listens in the place of the agent, or relays to it.", "TestOtherAccountsGetNothing TestHandoverFileIsClosedToOthers TestListenersOfOtherAccountsGetOnlyChallenges TestRelayToAgentGetsOnlyChallenges TestListenerIsCheckedBeforeTheRequest TestListenerOfAnotherUser"},
			processes:    {"The account does not signal or trace a process of the agent, or one of a task that has another user. An agent neither kills nor names a process of the account that has the environment of a task.", "TestOtherAccountsGetNothing TestForgedEnvironment TestStopLeavesForgedProcesses"},
			network:      {"The account gets no unix socket of the agent, whose directories are closed, and not the TCP port, with 127.0.0.1 and [::1], as long as the agent or its keeper runs. Without both, another process can have the port: then the agent does not start, and names the process if it listens. If the process has only the loopback address that the agent does not serve, the agent starts with a warning.", "TestSocketDirThatOthersCanEnterIsRefused TestSocketOfAnotherProcessIsRefused TestSocketsOfOtherUsersAreNotTrusted " + portTests},
			availability: {"The account takes no connections of the operator on the unix socket, and none over TCP where the kernel reports the users of clients (`tcp_diag`).", connsTests},
		},
	},
	{
		"Author of a job of exec", "A person whose job file, with tasks of `exec` or `java`, the operator of an agent of root runs. The configuration has its defaults; each option that gives more is named at the start.",
		[assetCount]promise{
			machineFiles: {"No task is a denied user, or has a group of another, whatever the job writes. Tasks, templates and artifacts reach at most the files of `chroot_env`, read-only, those of their allocation, and the host volumes that the operator has named. The deletion of a volume follows no link. No file of the machine is mounted below the data directory, so its removal reaches none. The functions of the text read what is below the working directory, the directory of the job file and their Git repository, what every account can read, and what `-allow-file` names.", "TestDriverThatMountsHostFilesGetsMounts TestUnmountAllocDirs TestDeniedByEveryName TestForeignGroups FuzzDeniedRoot TestDestinationPaths TestConfinement TestGiveUpRights TestEvaluatorHasNoRights " + volumeTests + " TestVolumeIsNotExchanged TestMkdirVolume " + hostile + " " + jobTexts},
			taskFiles:    {"No task reaches the directory of another allocation.", hostile + " TestOtherTaskCannotReadDownload"},
			agentFiles:   {"No task, template, artifact or volume reaches the data directory. No function of the text reads it.", hostile + " TestGiveUpRights TestEvaluatorHasNoRights " + jobTexts},
			secrets:      {"Tasks inherit no variable of the agent's environment that `env.denylist` names. No event, log, time line or debug bundle has a value of a variable that the task or its hooks were given. Nothing is promised about variables: templates of each job read those of all namespaces, as on Nomad without ACLs.", "TestTasksInheritNoSecret TestHostEnv TestNoTextHasASecret TestNextAgentKnowsSecrets"},
			processes:    {"The job shares no PID or IPC namespace of the machine without `allow_pid_mode` or `allow_ipc_mode`. Its texts and the logs of its tasks control neither the terminal nor the page of the operator.", "TestHostModes TestHostPIDNamespace TestTerminalGetsNoControlCharacters TestUILogsAndFiles " + hostile},
			network:      {"A job chooses the network of the machine, in which its tasks listen on each free port, and the names of its services. The port of the API is not free while the agent restarts.", portTests},
			availability: {"A job that is refused or fails leaves the agent and other jobs running. Where the machine has cgroups, memory is limited, and tasks share the processors by their `cpu`. The disk is not limited.", hostile + " TestMemoryLimit TestCPUShares TestEvaluationIsBounded"},
		},
	},
	{
		"Author of a job of docker", "A person whose job file, with tasks of `docker`, the operator runs. `allow_privileged` and `volumes` have their defaults.",
		[assetCount]promise{
			machineFiles: {"Mounts, archives, profiles, templates and artifacts reach files of the allocation and the host volumes that the operator has named, also while another task replaces directories by links. Nothing is promised if the job names `devices`, which Nomad allows to each job, except that no task replaces such a device. The functions of the text read what is below the working directory, the directory of the job file and their Git repository, what every account can read, and what `-allow-file` names.", "TestSourcesAreMountedAsChecked TestEnginesMountWhatIsChecked TestVolumeLinks TestRefusedOptions TestDevicesInDirectoriesOfTasks TestConfinement TestGiveUpRights TestEvaluatorHasNoRights " + volumeTests + " " + hostile + " " + jobTexts},
			taskFiles:    {"Mounts do not lead to other allocations.", "TestSourcesAreMountedAsChecked TestVolumeLinks " + hostile},
			agentFiles:   {"Mounts do not lead to the data directory. No function of the text reads it.", "TestSourcesAreMountedAsChecked TestVolumeLinks " + hostile + " " + jobTexts},
			secrets:      {"A container inherits nothing of the agent's environment. No event, log, time line or debug bundle has a value of a variable that the task or its hooks were given. Nothing is promised about variables: templates of each job read those of all namespaces, as on Nomad without ACLs.", "TestHostEnv TestNoTextHasASecret"},
			processes:    {"A container is not privileged, has the capabilities of `allow_caps` at most, and shares no PID or IPC namespace with the machine or with another container without `allowed_modes`. It shares the hostname of the machine at most in the network of the machine.", "TestRefusedOptions TestAllowedModes TestCapabilities TestHostileJobsOnPodman " + hostile},
			network:      {text: "A job chooses `network_mode`, the network of the machine and those of other containers included, as under Nomad."},
			availability: {"A file that a job names is read with a limit, and only if it is a regular file.", hostile + " TestReadFile TestOpenArchive"},
		},
	},
	{
		"Author of a job of raw_exec or qemu", "A person whose job file, with tasks of `raw_exec` or `qemu`, the operator of an agent of root runs. The operator has enabled the driver, or only root can submit jobs.",
		[assetCount]promise{
			machineFiles: {"No task is a user that the operator denies to the driver. With [`args_allowlist`](docs/reference/qemu.md#who-may-name-which-images), a job of `qemu` names only images of its allocation and below `image_paths`. Nothing else is promised: `raw_exec` isolates nothing, and QEMU opens each disk that a job names. The functions of the text read what is below the working directory, the directory of the job file and their Git repository, what every account can read, and what `-allow-file` names.", "TestDeniedByEveryName TestForeignGroups TestDeniedUsers TestDeniedUserFailsTask TestCommandLine TestStartErrors TestImagePaths TestFormatOfJobImage " + jobTexts},
			taskFiles:    {text: "A task of root reads all files."},
			agentFiles:   {text: "A task of root reads all files."},
			secrets:      {text: "A task of root reads all files."},
			processes:    {text: "A task of root traces all processes."},
			network:      {text: "A task of root has all rights on the network."},
			availability: {text: "A task of root stops all processes."},
		},
	},
	{
		"Task of exec", "A program in a task of `exec` or `java` under an agent of root. It has another user than root, and no capability that the operator has not allowed.",
		[assetCount]promise{
			machineFiles: {"The task sees the files of `chroot_env`, read-only, with the rights of its user, becomes no other user (with `setuid` or `setgid` in `allow_caps`, no denied one), and leaves no set-id program or device.", "TestEscapes TestResolveRandom TestSetIDs TestDeniedIDsOfTask FuzzDeniedID TestSetIDBits TestLinksThatChangeDuringBuild " + hostile},
			taskFiles:    {"The task sees its own directories and the shared directory of its allocation.", "TestEscapes " + hostile},
			agentFiles:   {"The task does not see the data directory.", "TestEscapes " + hostile},
			secrets:      {"The task sees no secrets of another task, and none of the one-time secrets of `nomad-lite ui`.", "TestEscapes TestTaskOfTheSameUserGetsNoSecret " + hostile},
			processes:    {"The task sees only its own processes. In the PID namespace of the machine, which the operator must allow, it traces no process of the agent or of another user; it reaches those of its user, and their files. With `sys_ptrace` as well, nothing is promised.", "TestEscapes TestHostPIDNamespace TestProcessesCannotBeTraced TestAttackAsTask " + hostile},
			network:      {"With the network mode `none` the task reaches no network. Nothing is promised without a network of its group: the task has that of the machine, with its ports and abstract unix sockets.", "TestEscapes"},
			availability: {"The task has at most the memory of its `memory`, or `memory_max`, and the processes of `pids_limit`, where the machine has cgroups.", "TestEscapes TestPidsLimit"},
		},
	},
	{
		"Task of exec as root", "As above, with the user root, which the operator has removed from `user.denylist`. With `allow_pid_mode` and `allow_host_mode_root`, nothing is promised about files and secrets: the task reaches those of each process of root that has no capability more than the task.",
		[assetCount]promise{
			machineFiles: {"The task reads and writes no file outside of its root directory, and leaves no set-id program or device. In its root directory, it reads all files of the machine that `chroot_env` names.", "TestEscapes TestSetIDs TestSetIDBits " + hostile},
			taskFiles:    {"The task does not see them, except in the shared directory of its allocation.", "TestEscapes " + hostile},
			agentFiles:   {"The task does not see them.", "TestEscapes " + hostile},
			secrets:      {"The task does not see those of other tasks.", "TestEscapes " + hostile},
			processes:    {"The task sees only its own. With `allow_pid_mode` and `allow_host_mode_root` it traces no process of the agent, but signals processes of root, and traces those that have no capability more than the task. With `sys_ptrace` as well, nothing is promised.", "TestEscapes TestHostModes TestProcessesCannotBeTraced TestAttackAsTask " + hostile},
			network:      {text: "In the network of the machine the task counts as the operator until it sends a token."},
			availability: {"The operator reaches the agent at the unix socket, whatever the task does.", "TestUnixPeersAreOperators TestIncompleteRequestsDoNotEvictOperators"},
		},
	},
	{
		"Task in a bridge", "A task in a group with the network mode `bridge`. It can have `net_raw`. Nothing is promised about a task of `raw_exec` or `qemu`: it leaves the network as root, or through another process of its user.",
		[assetCount]promise{
			machineFiles: {text: "The network does not change what the driver promises."},
			taskFiles:    {text: "The network does not change what the driver promises."},
			agentFiles:   {text: "The network does not change what the driver promises."},
			secrets:      {text: "The network does not change what the driver promises."},
			processes:    {text: "The network does not change what the driver promises."},
			network:      {"The namespace sends from its own addresses only, is no router and answers for no other address. It reaches no program of the machine that listens on 127.0.0.1 or on an abstract unix socket, and gets no port on which a program of the machine listens. Other machines reach its forwarded ports only.", "TestNamespaceSendsAsItself TestMachineIgnoresRouterAdvertisements TestLoopbackOfMachineIsUnreachable TestPortInUseByProgram TestNamespaceIsUnreachableFromOutside TestPortOfAddress " + hostile},
			availability: {text: "Groups reach each other at all ports, and share the bandwidth of the machine."},
		},
	},
	{
		"Task of docker", "A program in a container of the driver `docker`, as root of the container.",
		[assetCount]promise{
			machineFiles: {"The container sees no files of the machine except those that the engine and the operator give it. Under an agent of root, set-id programs and devices that it leaves in the directories of its task have no effect, unless the agent says at its start that it cannot mount them so. Nothing is promised about those in host volumes.", "TestSourcesAreMountedAsChecked TestSetuidProgramsOfTasks " + hostile},
			taskFiles:    {"The container sees its own directories and the shared directory of its allocation.", hostile},
			agentFiles:   {"The container does not see them.", hostile},
			secrets:      {"The container does not see those of other tasks.", hostile},
			processes:    {"The container sees only its own.", hostile + " TestCapabilities"},
			network:      {text: "The container has the network that its job names. By default that is Docker's, which is the engine's matter."},
			availability: {"The container has at most the memory of its `memory`, or of `memory_max` or `memory_hard_limit`.", "TestEngine TestMemory"},
		},
	},
	{
		"Task of exec without root", "A program in a task of `exec` or `java` under an agent that is not root. It has the agent's user, in a user namespace.",
		[assetCount]promise{
			machineFiles: {"The task sees the files of `chroot_env`, read-only, with the rights of the agent's user, and leaves no set-id program.", "TestEscapes TestEscapesRootless TestSetIDBits"},
			taskFiles:    {"The task sees its own directories and the shared directory of its allocation.", "TestEscapes TestEscapesRootless"},
			agentFiles:   {"The task does not see them.", "TestEscapes TestEscapesRootless"},
			secrets:      {"The task gets no token of the operator and no one-time secret of `nomad-lite ui`.", "TestTaskOfTheSameUserGetsNoSecret TestEscapesRootless"},
			processes:    {"The task sees only its own. `pid_mode = \"host\"` and `ipc_mode = \"host\"` are refused.", "TestEscapes TestEscapesRootless TestTaskOptionsRootless"},
			network:      {"With the network mode `none` the task reaches no network. Nothing is promised otherwise: the task has the network of the machine, and counts there as the operator until it sends a token.", "TestEscapes TestEscapesRootless"},
			availability: {text: "Without delegated cgroups, memory and processes are not limited."},
		},
	},
	{
		"Task of raw_exec without root", "A program in a task of `raw_exec`, or of a driver that isolates nothing, under an agent that is not root.",
		[assetCount]promise{
			machineFiles: {text: isOperator}, taskFiles: {text: isOperator}, agentFiles: {text: isOperator}, secrets: {text: isOperator},
			processes: {text: isOperator}, network: {text: isOperator}, availability: {text: isOperator},
		},
	},
	{
		"Server of a cluster", "A server to which a node of a cluster is connected, and that lies. It assigns the jobs of the node, so it is the author of jobs of each driver that the operator has enabled, too.",
		[assetCount]promise{
			machineFiles: {"An allocation is rejected, with the server and the field in the log, unless it is one of this node whose job is valid. Then the rows of its drivers apply: host volumes, users and options are those of the operator.", lyingTests + " TestJobsWithOneVersionAreNotMixedUp TestAllocationsThatWereNotRequestedAreIgnored"},
			taskFiles:    {text: "The server assigns all tasks of the node, and reads and changes their files for the users of the cluster. It cannot read `secrets/`."},
			agentFiles:   {"Requests of the server reach the files of allocations. It reads the log of the agent, and profiles if `enable_debug` is set.", "TestLyingServersGetNothingMore TestCallsAreRequestsToTheAPI FuzzPath"},
			secrets:      {"The server has the secret and the identity of the node and the tokens of the tasks that it has assigned. It gets no key, and no token of the operator.", "TestNodeShowsNoSecret"},
			processes:    {"The server starts and stops all tasks of the node. With `disable_remote_exec`, no command runs in them. `raw_exec` is enabled only by its plugin block.", "TestDriversOfNodeOfCluster TestReloadKeepsWaysIn"},
			network:      {text: "The server chooses the other servers to which the node connects. Their certificates are verified as that of the server."},
			availability: {"A response has at most 64 MiB and 512 Ki values, a request of the server 512 KiB and 4 Ki values. 256 streams of a server are served, and its connection is closed at 1024. The agent continues, in tests with less than 512 MiB of memory, and tasks that the server does not name continue.", "TestLyingServersGetNothingMore TestManySmallValuesAreAnError TestLargeRequestsOfThePeerAreRejected TestHostileMessagesAreErrors TestServeSurvivesHostileStreams TestConcurrentStreamsOfThePeerAreLimited TestPeerThatClosesNoStreamsIsDisconnected TestServersCannotCauseHeartbeatsWithoutPause TestResponsesThatNoServerSendsAreRejected TestRejectedAllocationDoesNotAffectOthers FuzzDecode"},
		},
	},
	{
		"Peer in the place of a server", "A program on the network that answers at the address of a server. The promises are about a node with `tls { rpc = true }` and `verify_server_hostname`. Without TLS nothing is promised but what is promised about a server that lies: the peer reads the secret of the node, and assigns its jobs. Without `verify_server_hostname`, each certificate of the authority that is valid for servers is that of a server, also the certificate of another node.",
		[assetCount]promise{
			machineFiles: {"The peer sends no message that the node reads.", peerTests},
			taskFiles:    {"The peer sends no message that the node reads.", peerTests},
			agentFiles:   {"The peer sends no message that the node reads.", peerTests},
			secrets:      {"The node sends nothing before it has verified the certificate of the peer: its authority, its time, its use, its name `server.<region>.nomad`, and TLS 1.2 or later.", peerTests},
			processes:    {"The peer sends no message that the node reads.", peerTests},
			network:      {"The peer does not pass as a server.", peerTests},
			availability: {text: "The peer keeps the node from its servers. Tasks continue."},
		},
	},
	{
		"Task of a node of a cluster", "A program in a task that has another user than the agent, at the ports of the node, with the token of its identity or with others that it can get.",
		[assetCount]promise{
			machineFiles: {text: "Being a node does not change what the driver promises."},
			taskFiles:    {"The API serves no file to the task. The data of an allocation needs the token that the servers have made for that allocation, and no other token opens it.", nodeTokens + " TestSnapshotOfAllocationNeedsItsToken"},
			agentFiles:   {"The API serves no file to the task.", nodeTokens},
			secrets:      {"The secret, the identity and the introduction token of the node and the keys of its certificates are in no environment, argument, log, page or debug bundle, and in no file that the task can read. The variable `NOMAD_CLIENT_INTRO_TOKEN` of the agent is not inherited; the flag `-client-intro-token` is an argument, which all users of the machine see.", "TestNodeShowsNoSecret TestTokensOfAgentAreNotForwarded"},
			processes:    {"The token of the task starts, stops and signals nothing at the node.", nodeTokens},
			network:      {"The servers decide what the token of the task may read. The node calls them about variables and services with the token of the task, never with its own.", "TestNoCallWithoutTaskToken TestCallsHaveTokenOfTheirTask TestTasksOfClusterReadTheirVariables"},
			availability: {"Connections of tasks are a part of their own.", connsTests},
		},
	},
	{
		"Holder of the secret of a node", "A person who has got the secret or the identity of a node, for example from a backup of its data directory. [A node of a cluster](docs/how-to/cluster.md#a-stolen-secret) says what to do about it.",
		[assetCount]promise{
			machineFiles: {"The secret opens nothing at this node.", nodeTokens},
			taskFiles:    {text: "The holder makes the tokens for the data of all allocations of this node, which are for `ephemeral_disk { migrate = true }`. The node serves the data only with `advertise.http`."},
			agentFiles:   {"The secret opens nothing at this node.", nodeTokens},
			secrets:      {text: "At the servers the holder is the node: it reads the jobs of the allocations in its node pool, and the tokens of the tasks of this node."},
			processes:    {"The secret starts, stops and signals nothing at this node.", nodeTokens},
			network:      {text: "At the servers the holder is the node, and registers services and states in its name."},
			availability: {text: "The holder can report states of allocations, so that the servers stop or replace them."},
		},
	},
	{
		"Author of a snapshot or a state file", "A person whose file the operator gives to `operator snapshot inspect`, `operator snapshot restore`, `operator state inspect` or `operator state verify`.",
		[assetCount]promise{
			machineFiles: {"No name and no link in the archive reaches a file outside of the data directory.", "TestHostileSnapshots FuzzUnpack"},
			taskFiles:    {text: "A restored state has jobs, which the next agent runs."},
			agentFiles:   {"A file that is refused changes nothing in the data directory.", "TestHostileSnapshots TestHostileStateFiles"},
			secrets:      {text: "A restored state has jobs, which the next agent runs."},
			processes:    {text: "A restored state has jobs, which the next agent runs."},
			network:      {text: "A restored state has jobs, which the next agent runs."},
			availability: {"The state of a snapshot has at most 1 GiB, and a restore at most three copies of it. A file whose parts overlap, repeat or are missing needs at most 512 MiB of memory. Nothing is promised about the memory for valid records: a restored state has jobs, which can do more.", "TestHostileStateFiles TestHostileSnapshots"},
		},
	},
}

func formatPromises() string {
	var b strings.Builder
	for _, a := range actors {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| Asset | Promise | Tests |\n| --- | --- | --- |\n", a.name, a.about)
		for n, p := range a.promises {
			tests := "`" + strings.Join(strings.Fields(p.tests), "`, `") + "`"
			if p.tests == "" {
				p.text, tests = "None. "+p.text, ""
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", assetNames[n], p.text, tests)
		}
	}
	return b.String() + "\n"
}

// SECURITY.md has the table of promises, and each promise has tests that exist.
func TestReferenceSecurityPromises(t *testing.T) {
	names := findTestNames(t)
	for _, a := range actors {
		for n, p := range a.promises {
			if p.text == "" {
				t.Errorf("%s: nothing about %s", a.name, assetNames[n])
			}
			for _, test := range strings.Fields(p.tests) {
				if !names[test] {
					t.Errorf("%s, %s: there is no test %s", a.name, assetNames[n], test)
				}
			}
		}
	}
	docpage.CheckPart(t, "../SECURITY.md", formatPromises())
}

// promisingDocuments are the documents that promise something about isolation. Each of them links to rows of the table.
var promisingDocuments = []string{"explanation/security.md", "how-to/cluster.md", "how-to/shared-machine.md", "reference/agent.md", "reference/api.md", "reference/cli.md", "reference/docker.md", "reference/exec.md", "reference/networks.md", "reference/qemu.md", "reference/ui.md", "reference/volumes.md"}

// A promise in a document is a link to a row of the table.
func TestDocumentsLinkToPromises(t *testing.T) {
	var anchors []string
	for _, a := range actors {
		anchors = append(anchors, strings.ReplaceAll(strings.ToLower(a.name), " ", "-"))
	}
	for _, name := range promisingDocuments {
		text, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		links := regexp.MustCompile(`\(\.\./\.\./SECURITY\.md#([^)]+)\)`).FindAllStringSubmatch(string(text), -1)
		if len(links) == 0 {
			t.Errorf("docs/%s links to no row of the table in SECURITY.md", name)
		}
		for _, link := range links {
			if !slices.Contains(anchors, link[1]) {
				t.Errorf("docs/%s: the table in SECURITY.md has no row %q", name, link[1])
			}
		}
	}
}
