package main

import (
	"cmp"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
)

// comparison is a row of the result.
type comparison struct {
	rowID
	base, candidate float64 // medians
	difference      float64 // median of the differences in the rounds; positive means that the candidate has the larger figure
	noise           float64 // median of the absolute differences of base with itself in the rounds
	p               float64 // probability of such a difference, or a larger one, if the commits are equal
	verdict         string
}

const (
	verdictSame       = "same"
	verdictBetter     = "better"
	verdictWorse      = "worse"
	verdictOnlyOne    = "only in " // followed by the side
	verdictIncomplete = "not in each round"
)

// falseAlarms is the probability that a comparison of equal commits has a row that is not "same".
const falseAlarms = 0.05

// compare compares the figures of each row, of which a complete one has a figure of each side in each
// round. DESIGN.md describes the statistics.
func compare(s samples, rounds int) []comparison {
	var rows []comparison
	for id, figures := range s {
		c := comparison{rowID: id, p: math.NaN()}
		counts := [sideCount]int{len(figures[sideBase]), len(figures[sideAgain]), len(figures[sideCandidate])}
		switch {
		case counts == [sideCount]int{rounds, rounds, rounds}:
			compareRow(&c, figures)
		case counts[sideBase]+counts[sideAgain] == 0:
			c.verdict = verdictOnlyOne + sideCandidate.String()
		case counts[sideCandidate] == 0:
			c.verdict = verdictOnlyOne + sideBase.String()
		default:
			c.verdict = verdictIncomplete
		}
		rows = append(rows, c)
	}
	decide(rows)
	slices.SortFunc(rows, func(a, b comparison) int { return cmp.Or(cmp.Compare(a.row, b.row), cmp.Compare(a.unit, b.unit)) })
	return rows
}

// compareRow sets all of c but the verdict.
func compareRow(c *comparison, figures *[sideCount][]figure) {
	rounds := make([][sideCount]float64, len(figures[sideBase]))
	var both, candidate, differences, itself []float64
	step := 0.0
	for i := range rounds {
		for at := range sideCount {
			rounds[i][at] = figures[at][i].value
			step = max(step, figures[at][i].step)
		}
		base, again, c := rounds[i][sideBase], rounds[i][sideAgain], rounds[i][sideCandidate]
		both = append(both, base, again)
		candidate = append(candidate, c)
		differences = append(differences, c-(base+again)/2)
		itself = append(itself, math.Abs(again-base))
	}
	c.base, c.candidate, c.difference = median(both), median(candidate), median(differences)
	// Rounding moves each figure by half a step.
	c.noise = max(median(itself), step*(1+1e-9))
	c.p = pValue(rounds)
}

// decide sets the verdicts of the compared rows. A row is not the same if its difference is larger than
// its noise and if chance does not explain it: the method of Holm limits the probability of a false
// alarm in the whole table to falseAlarms.
func decide(rows []comparison) {
	var compared []*comparison
	for i := range rows {
		if !math.IsNaN(rows[i].p) {
			compared = append(compared, &rows[i])
		}
	}
	slices.SortFunc(compared, func(a, b *comparison) int { return cmp.Compare(a.p, b.p) })
	chance := false
	for i, c := range compared {
		chance = chance || c.p > falseAlarms/float64(len(compared)-i)
		switch {
		case chance || math.Abs(c.difference) <= c.noise:
			c.verdict = verdictSame
		case c.difference > 0 == moreIsBetter(c.unit):
			c.verdict = verdictBetter
		default:
			c.verdict = verdictWorse
		}
	}
}

var rateUnit = regexp.MustCompile(`^[A-Za-z]*/s$`)

// moreIsBetter reports whether a larger figure of a unit is better: that of a rate, such as B/s. All
// other units are durations, sizes and counts.
func moreIsBetter(unit string) bool { return rateUnit.MatchString(unit) }

// maxChoices limits how many choices pValue computes. With more rounds, it takes as many random
// choices.
const maxChoices = 1 << 16

// pValue returns the probability of the order of the figures, or a more extreme one, if the three runs
// of each round are of equal programs. It is exact, because then each run of a round has the same
// probability to be the one that is called candidate.
//
// The statistic is the sum of the ranks of the candidate's figures. The ranks are those of the
// distances from the median of the round, among the figures of all rounds: a drift of the machine
// between rounds does not change them, and one disturbed run has no more weight than another one.
func pValue(rounds [][sideCount]float64) float64 {
	ranks := alignedRanks(rounds)
	expected, observed := 0.0, 0.0
	for _, r := range ranks {
		expected += (r[sideBase] + r[sideAgain] + r[sideCandidate]) / float64(sideCount)
		observed += r[sideCandidate]
	}
	extreme, choices := 0, 0
	forEachChoice(ranks, func(sum float64) {
		choices++
		if math.Abs(sum-expected) >= math.Abs(observed-expected)-1e-9 {
			extreme++
		}
	})
	if choices == maxChoices { // random choices lack the observed one
		extreme, choices = extreme+1, choices+1
	}
	return float64(extreme) / float64(choices)
}

// alignedRanks replaces each figure with the rank of its distance from the median of its round. Equal
// distances have the mean of their ranks.
func alignedRanks(rounds [][sideCount]float64) [][sideCount]float64 {
	type place struct {
		distance float64
		round    int
		at       side
	}
	var places []place
	for i, figures := range rounds {
		center := median(slices.Clone(figures[:]))
		for at, f := range figures {
			places = append(places, place{f - center, i, side(at)})
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.distance, b.distance) })
	ranks := make([][sideCount]float64, len(rounds))
	for first := 0; first < len(places); {
		end := first
		for end < len(places) && places[end].distance == places[first].distance {
			end++
		}
		for _, p := range places[first:end] {
			ranks[p.round][p.at] = float64(first+end-1) / 2
		}
		first = end
	}
	return ranks
}

// forEachChoice calls visit with the sum of each way to choose one value of each round, or of
// maxChoices random ways if there are more.
func forEachChoice(rounds [][sideCount]float64, visit func(sum float64)) {
	if math.Pow(float64(sideCount), float64(len(rounds))) > maxChoices {
		random := rand.New(rand.NewPCG(1, 1)) // equal figures give equal verdicts
		for range maxChoices {
			sum := 0.0
			for _, values := range rounds {
				sum += values[random.IntN(int(sideCount))]
			}
			visit(sum)
		}
		return
	}
	var choose func(rest [][sideCount]float64, sum float64)
	choose = func(rest [][sideCount]float64, sum float64) {
		if len(rest) == 0 {
			visit(sum)
			return
		}
		for _, value := range rest[0] {
			choose(rest[1:], sum+value)
		}
	}
	choose(rounds, 0)
}

// median sorts values.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
