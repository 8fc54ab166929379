package server

import "time"

// SetRollbackLimit changes how long a ROLLBACK may take. Call it before any test.
func SetRollbackLimit(d time.Duration) { rollbackLimit = d }
