package osprocess

import (
	"os"
	"strconv"
	"strings"
)

// When memory runs out, the kernel kills the process with the highest OOM score.
// oomScoreFile adjusts the score of this process.
const (
	oomScoreFile      = "/proc/self/oom_score_adj"
	protectedOOMScore = -999 // lower than the score of almost every other process
)

// ProtectFromOOM lowers the OOM score of this process, so that the kernel kills it last. It
// returns the previous score for SetOOMScore, or an empty string if the score was not
// changed: only root can lower it.
func ProtectFromOOM() (previousScore string) {
	text, err := os.ReadFile(oomScoreFile)
	if err != nil {
		return ""
	}
	previousScore = strings.TrimSpace(string(text))
	score, err := strconv.Atoi(previousScore)
	if err != nil || score <= protectedOOMScore || !SetOOMScore(strconv.Itoa(protectedOOMScore)) {
		return ""
	}
	return previousScore
}

// LowerOOMScoreAgain lowers the OOM score of this process again after [SetOOMScore]. It does nothing if
// previousScore, the result of [ProtectFromOOM], is empty: then the score was never lowered.
func LowerOOMScoreAgain(previousScore string) {
	if previousScore != "" {
		SetOOMScore(strconv.Itoa(protectedOOMScore))
	}
}

// SetOOMScore sets the OOM score of this process, and reports success; it ignores an empty
// score. A parent sets the score before it forks, so that all descendants of the child
// inherit it.
func SetOOMScore(score string) bool {
	return score != "" && os.WriteFile(oomScoreFile, []byte(score), 0) == nil
}
