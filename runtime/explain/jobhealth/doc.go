// Package jobhealth states a job's health in one word, with the cause and the remedy in one sentence.
//
// [Evaluate] is a pure function of a snapshot: it reads no clock and no file, and keeps no state between calls. Its caller calls
// it again after a snapshot change, and at the time requested by the result. The agent shows the same result in the HTTP API, the
// web page, the command line and the metrics. Nomad's job status exists beside it.
package jobhealth
