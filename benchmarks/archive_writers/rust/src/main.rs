//! Writes planned archives by the crate warc: `rw PLANS OUT`. Every second one is gzip, which the crate packs as a whole.
use base64::{engine::general_purpose::STANDARD, Engine};
use std::{env, fs, path::Path};
use warc::{RawRecordHeader, RecordType, WarcHeader, WarcWriter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().collect();
    for entry in fs::read_dir(&args[1])? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap().to_string_lossy().to_string();
        let text = fs::read_to_string(&path)?;
        if stem.parse::<u32>()? % 2 == 0 {
            let mut writer = WarcWriter::from_path_gzip(Path::new(&args[2]).join(format!("{stem}.warc.gz")))?;
            for line in text.lines() {
                let (header, body) = record(line)?;
                writer.write_raw(header, &body)?;
            }
            writer.into_inner().map_err(|_| "not flushed")?.finish().into_result()?;
        } else {
            let mut writer = WarcWriter::from_path(Path::new(&args[2]).join(format!("{stem}.warc")))?;
            for line in text.lines() {
                let (header, body) = record(line)?;
                writer.write_raw(header, &body)?;
            }
        }
    }
    Ok(())
}

fn record(line: &str) -> Result<(RawRecordHeader, Vec<u8>), Box<dyn std::error::Error>> {
    let row: serde_json::Value = serde_json::from_str(line)?;
    let text = |name: &str| row[name].as_str().unwrap().to_string();
    let body = STANDARD.decode(text("block"))?;
    let mut builder = warc::RecordBuilder::default()
        .warc_type(RecordType::from(text("kind")))
        .warc_id(format!("<{}>", text("name")))
        .date(text("date").parse()?)
        .header(WarcHeader::TargetURI, text("url"))
        .header(WarcHeader::ContentType, text("content_type"))
        .body(body);
    for (name, value) in row["fields"].as_object().unwrap() {
        builder = builder.header(WarcHeader::from(name), value.as_str().unwrap().to_string());
    }
    Ok(builder.build_raw())
}
