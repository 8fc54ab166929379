package server

import (
	"database/sql/driver"
	"time"
)

// SetRollbackLimit changes how long a ROLLBACK may take. Call it before any test.
func SetRollbackLimit(d time.Duration) { rollbackLimit = d }

// SafeConnector changes the errors of another connector.
func SafeConnector(c driver.Connector) driver.Connector { return safeConnector{c} }
