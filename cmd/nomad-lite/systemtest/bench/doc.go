// Package bench measures the figures of the budgets, beside the floors of the same run.
package bench
