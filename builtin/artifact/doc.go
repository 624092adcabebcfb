// Package artifact is the hook behind the artifact blocks of a task: before the
// task starts, it downloads the artifacts into the task's directory.
//
// Each download is a process of its own ([DownloadProcessMain]) with access only to what it
// needs. If the agent is root, the process has a user of its own; the kernel
// lets it write to a single empty directory (Landlock), in which it unpacks.
// When the process has ended, the hook takes that directory back, compares a
// checksum, inspects the result, and moves it to its destination: through
// handles that cannot leave the task's directory, and only if every entry is
// allowed there.
//
// The package does not read job files. A source is http(s), s3, git, hg, or a
// file if the operator has allowed it; a source without a scheme is detected only
// for well-known hosts of repositories and of S3.
package artifact
