// Package jobhealth states the health of a job in one word, with the cause and the remedy in one sentence.
//
// [Evaluate] is a pure function of a snapshot: it reads no clock and no file, and keeps no state between calls. Its caller
// calls it again after a change of the snapshot, and at the time that the result requests. The agent shows the same result
// in the HTTP API, the web page, the command line and the metrics. The status of a job, which is Nomad's, exists beside it.
package jobhealth
