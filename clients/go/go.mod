module mailappliance

go 1.19
