package keeper

import (
	"os"
	"strconv"
	"strings"
)

// The kernel ends the process with the highest score when memory runs out.
const (
	oomScoreFile   = "/proc/self/oom_score_adj"
	protectedScore = -999 // any other process is ended before
)

// ProtectFromOOM makes this process one that the kernel ends last when memory runs out.
// It returns the score that the process had, for its children, and an empty string if it
// stays what it was: only root can lower it.
func ProtectFromOOM() (before string) {
	text, err := os.ReadFile(oomScoreFile)
	if err != nil {
		return ""
	}
	before = strings.TrimSpace(string(text))
	score, err := strconv.Atoi(before)
	if err != nil || score <= protectedScore || !setOOMScore(strconv.Itoa(protectedScore)) {
		return ""
	}
	return before
}

// protect protects the process again after [setOOMScore].
func protect(before string) {
	if before != "" {
		setOOMScore(strconv.Itoa(protectedScore))
	}
}

// setOOMScore sets the score of this process, unless it is empty. A child has it from
// the fork on: later, a child of that one could have the old one.
func setOOMScore(score string) bool {
	return score != "" && os.WriteFile(oomScoreFile, []byte(score), 0) == nil
}
