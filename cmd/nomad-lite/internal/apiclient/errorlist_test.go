package apiclient

import "testing"

func TestErrorListHasOneSentencePerError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"job not found": "job not found",
		"1 error occurred:\n\t* Job ID contains a space\n\n": "Job ID contains a space",
		"2 errors occurred:\n\t* Job ID contains a space\n\t* Task group g validation failed: 1 error occurred:\n\t* Task group service validation failed: 2 errors occurred:\n\t* interval (200ms) cannot be lower than 1s\n\t* timeout is missing\n\n\n\n\n\n\n": "\n" +
			"  * Job ID contains a space\n" +
			"  * Task group g: Task group service: interval (200ms) cannot be lower than 1s\n" +
			"  * Task group g: Task group service: timeout is missing",
		"2 errors occurred:\n\t* an error of\ntwo lines\n\t* another\n\n": "\n  * an error of\ntwo lines\n  * another",
	} {
		if got := formatErrorList(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
