package keeper

import (
	"os"
	"strconv"
	"strings"
)

// When memory runs out, the kernel kills the process with the highest score.
const (
	oomScoreFile      = "/proc/self/oom_score_adj"
	protectedOOMScore = -999 // the kernel kills processes with a higher score first
)

// ProtectFromOOM lowers the OOM score of this process, so that the kernel kills it last. It
// returns the previous score, for child processes, or an empty string if the score was not
// changed: only root can lower it.
func ProtectFromOOM() (before string) {
	text, err := os.ReadFile(oomScoreFile)
	if err != nil {
		return ""
	}
	before = strings.TrimSpace(string(text))
	score, err := strconv.Atoi(before)
	if err != nil || score <= protectedOOMScore || !setOOMScore(strconv.Itoa(protectedOOMScore)) {
		return ""
	}
	return before
}

// setProtectedOOMScore lowers the score again after [setOOMScore].
func setProtectedOOMScore(before string) {
	if before != "" {
		setOOMScore(strconv.Itoa(protectedOOMScore))
	}
}

// setOOMScore sets the score of this process, and reports success; an empty score is ignored.
// The parent sets the score before the fork, because a grandchild could otherwise inherit the
// old score.
func setOOMScore(score string) bool {
	return score != "" && os.WriteFile(oomScoreFile, []byte(score), 0) == nil
}
